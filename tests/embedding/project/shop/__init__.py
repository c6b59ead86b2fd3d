"""A project that was there before: its own users, requests in transactions, its own queue."""
