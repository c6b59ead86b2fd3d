"""The site under a project's own Q_CLUSTER, whose clocks would run a long unit again and again."""

from harness_site.settings import *  # noqa: F403
from harness_site.settings import Q_CLUSTER

Q_CLUSTER |= {"timeout": 3, "retry": 5, "bulk": 20, "queue_limit": 20, "max_attempts": 0}
