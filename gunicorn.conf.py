"""gunicorn's settings, found by `gunicorn harness_site.wsgi` in this folder and used by `up`."""

import os
import signal
from types import FrameType
from typing import Any

bind = f"127.0.0.1:{os.environ.get('PORT') or '8000'}"
workers = 1
threads = 8
worker_class = "gthread"
graceful_timeout = 30  # seconds for requests in hand after SIGTERM; downloads included
control_socket_disable = True  # one path for every product of this user
loglevel = "warning"
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None


def post_worker_init(worker: Any) -> None:
    """The application is loaded: half of the threads may wait in long polls, until a stop."""
    from ledger.api import longpoll

    longpoll.set_threads(worker.cfg.threads)
    stop = signal.getsignal(signal.SIGTERM)

    def end_waiting(number: int, frame: FrameType | None) -> None:
        longpoll.closing.set()
        if callable(stop):
            stop(number, frame)

    signal.signal(signal.SIGTERM, end_waiting)
    if worker.age == 1 and (text := os.environ.get("LONGWATCH_READY_TEXT")):
        print(text, flush=True)  # noqa: T201  `up` speaks to the terminal when the web listens
