"""The pages on which people watch, approve, cancel and restart tasks."""
