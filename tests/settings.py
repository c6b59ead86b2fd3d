"""The site's settings, for tests: nothing from the developer's environment, a database per ring.

`pytest tests/test_x.py` is the sqlite ring; with LONGWATCH_TEST_RING=postgresql it runs against a
cluster of its own, which ends with it.
"""

import atexit
import os
import shutil
import sys
import tempfile

# Whatever the environment says, until the tests are collected (tests/conftest.py): each process of
# a test compiled the product anew, 0.6 s for a web server, and each ring all asserts, 7 s.
sys.dont_write_bytecode = False

RING = os.environ.setdefault("LONGWATCH_TEST_RING", "sqlite")

for _name in [name for name in os.environ if name.startswith("LONGWATCH_")]:
    if not _name.startswith("LONGWATCH_TEST_"):
        del os.environ[_name]

if "LONGWATCH_TEST_DIR" not in os.environ:
    _folder = os.environ["LONGWATCH_TEST_DIR"] = tempfile.mkdtemp(prefix="lw-test-")
    _owner = os.getpid()  # not the children that a test forks
    atexit.register(lambda: _owner == os.getpid() and shutil.rmtree(_folder, ignore_errors=True))
os.environ["LONGWATCH_VAR"] = os.environ["LONGWATCH_TEST_DIR"]

if RING == "postgresql":
    if "LONGWATCH_TEST_POSTGRESQL" not in os.environ:
        from tests.pg import Cluster

        _cluster = Cluster().start()
        atexit.register(_cluster.close)
        os.environ["LONGWATCH_TEST_POSTGRESQL"] = _cluster.url
    os.environ["LONGWATCH_DATABASE_URL"] = os.environ["LONGWATCH_TEST_POSTGRESQL"]

from harness_site.settings import *  # noqa: E402, F403
from harness_site.settings import DATABASES, STORAGES, VAR  # noqa: E402

# A file, never memory: tests start processes that share it.
DATABASES["default"]["TEST"] = {"NAME": "test_longwatch"}
if RING != "postgresql":
    DATABASES["default"]["TEST"] = {"NAME": str(VAR / "test.sqlite3")}

STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
(VAR / "static").mkdir(parents=True, exist_ok=True)  # whitenoise warns of a missing folder
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
