"""An app that asks the database while Django starts, before any fork."""
