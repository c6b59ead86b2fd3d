"""As `manage.py up` does it: a cluster with a companion, here `sleep` in place of a web server."""

import sys

import django

django.setup()

from ledger.cluster import start_companion, supervise  # noqa: E402

web = start_companion("web", ["sleep", "3600"])
sys.stderr.write(f"web {web.process.pid} started\n")
sys.exit(supervise(2, [web]))
