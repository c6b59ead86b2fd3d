"""Chaos: real workers on a real database, everything that can break broken on a seeded schedule.

`make chaos` runs it, `python -m tests.chaos --help` names the options, docs/reliability.md says
what it proves. The parts: `plans` what is submitted, `flows` the workflows, `client` the process
that submits and answers, `fleet` the clusters, `schedule` what befalls them, `stages` the databases
with their faults, `proxy` the line between, `checker` what must be true afterwards.
"""
