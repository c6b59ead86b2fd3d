"""The toy loop's only table; apart from the loop, which needs Django set up."""

from __future__ import annotations

TABLE = """
CREATE TABLE toy (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, seconds REAL NOT NULL, deadline REAL NOT NULL,
    state TEXT NOT NULL, owner TEXT NOT NULL, runs INTEGER NOT NULL, released INTEGER NOT NULL,
    begun REAL NOT NULL
)
"""
