"""The sandbox: what a command that is not trusted can't see, can't use and can't leave behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from django.conf import settings as site

from ledger.sandbox import Bounds, Ended, run_confined

ROOT = Path(__file__).resolve().parents[2]

both_ways = pytest.mark.parametrize("isolate", [True, False], ids=["isolated", "bare"])


def confine(
    code: str, bounds: Bounds | None = None, *, isolate: bool = True, **more: object
) -> Ended:
    """Run Python code in the sandbox; `REPORT` in it is the report's descriptor."""
    made: list[Path] = []
    ended = run_confined(
        lambda report: [sys.executable, "-I", "-c", f"REPORT = {report}\n{textwrap.dedent(code)}"],
        made.append,
        bounds=bounds,
        isolate=isolate,
        **more,  # type: ignore[arg-type]
    )
    assert not made[0].parent.exists()
    return ended


def list_marked(mark: str) -> list[int]:
    """The processes with `mark` in their command line, zombies left out."""
    found = []
    for process in psutil.process_iter():
        try:
            if mark in " ".join(process.cmdline()) and process.pid != os.getpid():
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.02)


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that no other process has in its command line."""
    mark = f"mark-{uuid.uuid4().hex}"
    yield mark
    for pid in list_marked(mark):
        os.kill(pid, signal.SIGKILL)


@both_ways
def test_the_exit_code_the_output_and_the_report_come_back(isolate: bool) -> None:
    ended = confine(
        """
        import os, sys
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        os.write(REPORT, b"one\\ntwo\\n")
        sys.exit(7)
        """,
        isolate=isolate,
    )
    assert (ended.code, ended.timed_out, ended.report) == (7, False, [b"one", b"two"])
    assert ended.tail == "to stdout\nto stderr\n"
    assert isolate or not ended.held


def test_a_signal_is_told_by_the_exit_code() -> None:
    assert confine("import os; os.kill(os.getpid(), 11)").code == 128 + 11


@both_ways
def test_home_and_temporary_folder_are_its_own_and_the_environment_is_bare(isolate: bool) -> None:
    ended = confine(
        """
        import os, tempfile
        assert os.getcwd().endswith("/tree")
        assert tempfile.gettempdir() == os.environ["TMPDIR"] == os.path.realpath("../tmp")
        assert os.path.expanduser("~") == os.path.realpath("../home")
        open(os.path.expanduser("~/x"), "w").write("x")
        print(" ".join(sorted(os.environ.keys() - {"LC_CTYPE"})))
        """,
        isolate=isolate,
    )
    assert (ended.code, ended.tail) == (0, "HOME LANG PATH TMPDIR\n")


LOOK_FOR_SECRETS = """
import os, pathlib, sys

def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""

proc, secret = pathlib.Path("/proc"), b"hunter2" + b"-0123456789"
own = repr(sorted(os.environ.items())).encode() + read(proc / "self" / "environ")
others = b"".join(map(read, [*proc.glob("*/environ"), *proc.glob("*/cmdline")]))
files = read(pathlib.Path(VAR) / "secret_key")
print(*(secret in found for found in (own, others, files)))
"""

RUN_IN_A_PROCESS_WITH_SECRETS = """
import os, pathlib, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "harness_site.settings"
__import__("django").setup()
from tests.workflows.test_sandbox import LOOK_FOR_SECRETS, confine
var = os.environ["LONGWATCH_VAR"]
pathlib.Path(var, "secret_key").write_text("hunter2-0123456789-hunter2-0123456789")
ended = confine(f"VAR = {var!r}\\n{LOOK_FOR_SECRETS}")
print(ended.tail.strip(), "processes" in ended.held, "files" in ended.held)
"""


def test_no_secret_of_ours_can_be_read(tmp_path: Path) -> None:
    secret = "hunter2-0123456789"
    (tmp_path / "var").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", RUN_IN_A_PROCESS_WITH_SECRETS],
        cwd=ROOT,
        env={
            "PATH": os.environ["PATH"],
            "LONGWATCH_SECRET_KEY": secret * 3,
            "LONGWATCH_SECRET_API": secret,
            "LONGWATCH_VAR": str(tmp_path / "var"),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    own, others, files, processes_held, files_held = done.stdout.split()
    assert own == "False"
    # Where the kernel allows no namespaces, what stays open is said and shown to the reviewer.
    assert (others, files) == (str(processes_held != "True"), str(files_held != "True"))


@both_ways
def test_processes_that_leave_the_session_are_dead_afterwards(isolate: bool, mark: str) -> None:
    ended = confine(
        f"""
        import os, subprocess, sys, time
        for _ in range(3):
            if not os.fork():
                os.setsid()
                if not os.fork():
                    os.execv(sys.executable, [sys.executable, "-c",
                             "import signal, time; signal.signal(15, signal.SIG_IGN);"
                             "open('../tmp/up', 'a').write('x'); time.sleep(600)", "{mark}"])
                os._exit(0)
        while not os.path.exists("../tmp/up") or os.path.getsize("../tmp/up") < 3:
            time.sleep(0.01)
        print("up", flush=True)
        """,
        isolate=isolate,
    )
    assert (ended.code, ended.tail) == (0, "up\n")
    assert list_marked(mark) == []


def test_when_we_are_killed_before_it_begins_its_folder_goes_too(tmp_path: Path) -> None:
    code = """
import os, pathlib, sys, time
os.environ["DJANGO_SETTINGS_MODULE"] = "harness_site.settings"
__import__("django").setup()
from ledger.sandbox import run_confined
def fill(folder):
    (folder / "half").write_text("x")
    os.kill(os.getpid(), 9)
run_confined(lambda report: [sys.executable, "-c", ""], fill)
"""
    (tmp_path / "tmp").mkdir()
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp")}
    environment["LONGWATCH_VAR"] = str(tmp_path / "var")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr
    wait_until(lambda: list((tmp_path / "tmp").iterdir()) == [])


def test_what_fills_its_folder_may_fail(tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        folders.append(folder)
        raise OSError("disk full")

    folders: list[Path] = []
    with pytest.raises(OSError, match="disk full"):
        run_confined(lambda report: [sys.executable, "-c", ""], fill)
    assert not folders[0].parent.exists()


@both_ways
def test_at_the_deadline_everything_is_killed(isolate: bool, mark: str) -> None:
    ended = confine(
        f"""
        import os, subprocess, sys, time
        for _ in range(2):
            subprocess.Popen([sys.executable, "-c", "while True: pass", "{mark}"],
                             start_new_session=True)
        print("begun", flush=True)
        while True:
            pass
        """,
        Bounds(seconds=1.5),
        isolate=isolate,
    )
    assert ended.timed_out
    assert ended.tail == "begun\n"
    assert 1.5 <= ended.seconds < 20
    assert list_marked(mark) == []


def test_when_we_are_killed_it_dies_too(tmp_path: Path, mark: str) -> None:
    code = f"""
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "harness_site.settings"
__import__("django").setup()
from tests.workflows.test_sandbox import confine
confine("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time;"
        "time.sleep(600)', '{mark}', __import__('os').getcwd()], start_new_session=True)")
"""
    (tmp_path / "tmp").mkdir()
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path / "tmp")}
    environment["LONGWATCH_VAR"] = str(tmp_path / "var")
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=environment) as process:

        def sleeps() -> bool:
            assert process.poll() is None
            return any(
                "-c import time;" in " ".join(psutil.Process(pid).cmdline())
                for pid in list_marked(mark)
                if psutil.pid_exists(pid)
            )

        wait_until(sleeps)
        process.kill()
    wait_until(lambda: list_marked(mark) == [])
    wait_until(lambda: list((tmp_path / "tmp").iterdir()) == [])


def test_an_exception_of_ours_ends_it(mark: str) -> None:
    class Stopped(BaseException):
        pass

    def stop() -> None:
        if list_marked(mark):
            raise Stopped

    with pytest.raises(Stopped):
        confine(
            f"""
            import os, sys
            code = "import time; time.sleep(600)"
            os.execv(sys.executable, [sys.executable, "-c", code, "{mark}"])
            """,
            tick=stop,
        )
    assert list_marked(mark) == []


CONNECT = """
import socket
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=5).close()
    print("reached")
except OSError:
    print("cut off")
"""


@both_ways
def test_the_network_is_cut_off_where_that_is_said(isolate: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = confine(f"PORT = {server.getsockname()[1]}\n{CONNECT}", isolate=isolate)
    assert ended.tail == ("cut off\n" if "network" in ended.held else "reached\n")


def test_it_can_talk_to_itself() -> None:
    ended = confine(
        """
        import socket
        server = socket.create_server(("127.0.0.1", 0))
        socket.create_connection(server.getsockname(), timeout=5)
        """
    )
    assert (ended.code, ended.tail) == (0, "")


def test_root_has_no_powers_and_sees_no_process_of_ours() -> None:
    ended = confine(
        """
        import os
        status = dict(line.split(":", 1) for line in open("/proc/self/status"))
        print(status["CapEff"].strip(), status["NoNewPrivs"].strip())
        print(len([name for name in os.listdir("/proc") if name.isdigit()]))
        """
    )
    assert ended.tail.split() == ["0000000000000000", "1", "2"]


def test_what_the_site_keeps_is_hidden() -> None:
    file = Path(site.LONGWATCH_VAR) / "hidden.txt"
    file.write_text("ours")
    try:
        ended = confine(
            f"""
            import os
            print(os.listdir({str(file.parent)!r}))
            print(os.path.exists({str(site.DATABASES["default"]["NAME"])!r}))
            """
        )
    finally:
        file.unlink()
    assert ended.tail.startswith("[]\n")


def test_what_it_closes_to_us_is_removed_all_the_same() -> None:
    ended = confine(
        """
        import os
        os.makedirs("a/b/c")
        open("a/b/c/d", "w").close()
        os.symlink("/etc", "a/etc")
        os.chmod("a/b/c", 0)
        os.chmod("a", 0)
        """
    )
    assert ended.code == 0
    assert Path("/etc").stat().st_mode & 0o777 == 0o755


@both_ways
def test_it_may_work_in_a_folder_of_ours_which_stays_and_sees_nothing_beside_it(
    isolate: bool, tmp_path: Path, settings: Any
) -> None:
    settings.LONGWATCH_VAR = str(tmp_path)
    for name in ("secret_key", "workspaces/1/other/file", "workspaces/1/task/file"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("ours")
    code = (
        "import os\n"
        "for path in ('../../../secret_key', '../other/file', 'file'):\n"
        "    print(os.path.isfile(path) and open(path).read())\n"
        "open('made', 'w').close()\n"
        "print(os.environ['WORD'])"
    )
    ended = run_confined(
        lambda report: [sys.executable, "-c", code],
        folder=tmp_path / "workspaces/1/task",
        environment={"WORD": "given"},
        isolate=isolate,
    )
    beside = "False" if "files" in ended.held else "ours"
    assert ended.tail.splitlines() == [beside, beside, "ours", "given"]
    assert (tmp_path / "workspaces/1/task/made").exists()
    assert isolate or not ended.held
