"""A foreign project takes the wheel in."""
