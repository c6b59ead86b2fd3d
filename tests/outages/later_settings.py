"""The settings of the later release."""

from harness_site.settings import *  # noqa: F403
from harness_site.settings import INSTALLED_APPS

INSTALLED_APPS += ["tests.outages.later"]
