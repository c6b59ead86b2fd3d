"""How fast the ledger is, in ratios to raw loops over the same database in the same run.

`make bench`, or `python -m benchmarks --help`. What is measured: README.md beside this file.
"""
