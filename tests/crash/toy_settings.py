"""Settings for a cluster that runs the toy loop instead of the ledger's runner."""

import os
from pathlib import Path

from harness_site.env import parse_database

SECRET_KEY = "a toy, but a long one, as no other is let start"
USE_TZ = True
BASE_DIR = Path(os.environ["TOY_DIR"])
DATABASES = {"default": parse_database(os.environ["TOY_DATABASE_URL"], BASE_DIR)}
if os.environ.get("TOY_POOL"):
    DATABASES["default"] |= {"CONN_MAX_AGE": 0}
    DATABASES["default"]["OPTIONS"] = {"pool": {"min_size": 1, "max_size": 2}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "ledger.apps.LedgerConfig",
    "django_q",
    "django.contrib.auth",
    "django.contrib.contenttypes",
]
LONGWATCH_RESIDENT = "tests.crash.toy.run_resident"
LONGWATCH_SENDER = ""
LONGWATCH_WORKFLOWS = []
for _name, _value in os.environ.items():
    if _name.startswith("LONGWATCH_") and _name.endswith(("SECONDS", "TICKETS", "MB")):
        globals()[_name] = float(_value)
Q_CLUSTER = {"name": "toy", "timeout": 60, "retry": 3600}
LOGGING = {
    "version": 1,
    "formatters": {"line": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
