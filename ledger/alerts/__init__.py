"""Telling people: rules, the way from the outbox to an endpoint, and the ways to send."""
