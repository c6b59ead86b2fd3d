"""The site with an app that asks the database at the start; workers are replaced often."""

from harness_site.settings import *  # noqa: F403
from harness_site.settings import INSTALLED_APPS

INSTALLED_APPS += ["tests.outages.eager"]
