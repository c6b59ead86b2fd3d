"""Other harnesses on the same work, each in an environment of its own.

`python -m benchmarks.peers.NAME --url URL --way WAY` runs in that environment and prints its figure
as a line of JSON; `environments.py` makes the environments, `comparing.py` runs them beside ours.
"""
