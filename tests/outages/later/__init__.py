"""An app of a later release."""
