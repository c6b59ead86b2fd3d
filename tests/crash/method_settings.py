"""The site in a project that has chosen how multiprocessing starts processes; `forkserver` is what
Python 3.14 chooses by itself."""

import multiprocessing
import os

from harness_site.settings import *  # noqa: F403

multiprocessing.set_start_method(os.environ["LONGWATCH_TEST_METHOD"], force=True)
