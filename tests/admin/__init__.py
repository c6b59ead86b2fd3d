"""The admin: raw edits, guarded; records, read-only."""
