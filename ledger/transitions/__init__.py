"""Every write of a status: one function per edge of `states.EDGES`.

Each locks the task row, checks what it read, and moves exactly one row or raises a named error.
Status, event, limits and wake-up are one transaction; no file, network or user code runs inside.
Lock order: child, parent, approval, lane.
"""
