"""A deploy and its roll back, with the real code of v0.1 on one side: its web and workers are under
load while today's migrations are applied, killed half-way and repeated."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.commands.conftest import Product
from tests.conftest import ROOT
from tests.crash.cluster_kit import SIGKILL, SIGTERM, wait_for
from tests.outages.conftest import make_env
from tests.outages.kit import Client, Load, make_token, sign_in
from tests.places import make_place
from tests.upgrades.old_code import list_later_migrations, unpack_code

PROOF = bool(os.environ.get("LONGWATCH_TEST_PROOF"))

pytestmark = [
    pytest.mark.both_databases,
    pytest.mark.django_db,
    pytest.mark.case(37),
    pytest.mark.timeout(1800 if PROOF else 300),
]

HALTS = ["later.0002_notes", *(f"longwatch_ledger.{name}" for name in list_later_migrations())]
"""Each of them is killed once; the first belongs to a later app, so that there is always one."""
WORKERS = "4" if PROOF else "2"
STALL_SECONDS = 5.0 if PROOF else 20.0
"""Of a submission and a page: 3 s are the wait for a lock. The rings share a busy machine."""
CHARGED = "attempts > 0 OR reclaims > 0 OR releases > 0 OR status IN ('dead', 'failed')"
UNEXPECTED = """kind IN ('attempt_failed', 'released', 'reclaimed', 'stale_write_refused', 'failed',
    'dead')"""


class Site:
    """One installation: both releases on one database and one folder of files."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.old = unpack_code(folder / "v0.1")
        self.sink = folder / "sink"
        self.sink.touch()
        self.env = make_env(url, folder / "var") | {
            "LONGWATCH_WORKFLOWS": "tests.upgrades.flows",
            "PYTHONPATH": str(ROOT),
        }
        self.products: list[Product] = []

    def start(self, root: Path) -> tuple[Product, Client, Client]:
        """`up` of the code in that folder; the product, a caller of its API, a browser."""
        log = self.folder / f"up-{len(self.products)}.log"
        product = Product(self.env, log, "--workers", WORKERS, "--no-demo", root=root)
        self.products.append(product)
        cookie = sign_in(product, product.wait_until_ready())
        client = Client(product.url, token=make_token(self.env, root))
        client.wait_until_healthy()
        return product, client, Client(product.url, cookie=cookie)

    def migrate(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Today's `migrate`."""
        env = self.env | {"DJANGO_SETTINGS_MODULE": "tests.upgrades.halting_settings"} | more
        return subprocess.Popen(
            [sys.executable, "manage.py", "migrate", *words], cwd=ROOT, env=env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """The rows of a query, by the plain driver."""
        if self.url.startswith("postgresql"):
            with psycopg.connect(self.url) as link:
                return link.execute(query).fetchall()  # type: ignore[call-overload,no-any-return]
        file = sqlite3.connect(self.url.removeprefix("sqlite:///"), timeout=30)
        with contextlib.closing(file):
            return file.execute(query).fetchall()

    def count(self, table: str, where: str) -> int:
        return int(self.ask(f"SELECT count(*) FROM {table} WHERE {where}")[0][0])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """Nothing runs yet."""
    (tmp_path / "var").mkdir()
    with make_place(tmp_path / "var") as url:
        made = Site(url, tmp_path)
        try:
            yield made
        finally:
            for product in made.products:
                product.close()
                sys.stderr.write(product.read_log()[-3000:])


class WebLoad(Load):
    """Short tasks and a page, through whatever web `client` and `browser` name."""

    rate = 7.0 if PROOF else 5.0

    def __init__(self, site: Site, client: Client, browser: Client) -> None:
        super().__init__()
        self.site, self.client, self.browser = site, client, browser

    def act(self) -> None:
        for number in range(3 if PROOF else 1):
            key = f"load-{self.count}-{number}"
            assert self.client.submit(self.site.sink, key, seconds=0.01, turns=1).status == 201
        assert self.browser.ask("/tasks/").status == 200


def test_v0_1_goes_on_while_and_after_todays_migrations_and_hands_over(site: Site) -> None:
    """PROOF: each migration is killed, and v0.1 comes back for a roll back."""
    old, client, browser = site.start(site.old)
    assert where_is_the_ledger(site, site.old).startswith(str(site.old))
    with WebLoad(site, client, browser) as load:
        load.wait_for_more()
        if site.url.startswith("postgresql"):
            give_way_to_a_reader(site, load)
        for number, name in enumerate(HALTS if PROOF else HALTS[-1:]):
            kill_half_way(site, name, site.folder / f"halt-{number}")
            load.wait_for_more()
        migration = site.migrate()
        said, _ = migration.communicate(timeout=120)
        assert migration.returncode == 0, said
        load.wait_for_more()
        assert load.slowest < STALL_SECONDS
        use_all_of_it(site, client, browser)
        last = hand_over(site, load, old, ROOT)
        if PROOF:
            use_all_of_it(site, load.client, load.browser)
            last = hand_over(site, load, last, site.old)
            use_all_of_it(site, load.client, load.browser)
    check_all(site)
    assert last.stop() == 0


def give_way_to_a_reader(site: Site, load: WebLoad) -> None:
    """A dump holds its snapshot, and a lock on every table as it takes: what can't go beside it
    ends by the time for a lock and says what to look for; what could is done."""
    tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'longwatch%'"
    names = ", ".join(name for (name,) in site.ask(tables))
    with psycopg.connect(site.url) as reader:
        reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"LOCK TABLE {names} IN ACCESS SHARE MODE")  # type: ignore[arg-type]
        migration = site.migrate("--lock-seconds", "1", "--tries", "2")
        said, _ = migration.communicate(timeout=120)
        assert migration.returncode == 1, said
        assert "changed nothing. Look for a long transaction" in said
        load.wait_for_more()


def hand_over(site: Site, load: WebLoad, last: Product, root: Path) -> Product:
    """The code in that folder starts beside the last one, which then drains."""
    following, load.client, load.browser = site.start(root)
    assert last.stop(number=SIGTERM) == 0, last.read_log()
    load.wait_for_more()
    return following


def where_is_the_ledger(site: Site, root: Path) -> str:
    """The folder of the code that a process started there runs."""
    show = "import ledger; print(ledger.__file__)"
    command = [sys.executable, "manage.py", "shell", "-v0", "-c", show]
    done = subprocess.run(
        command, cwd=root, env=site.env, capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def kill_half_way(site: Site, name: str, halt: Path) -> None:
    """Half a migration is none."""
    killed = site.migrate(HALT_AT=name, HALT_FILE=str(halt))
    try:
        wait_for(f"{name} is done but for its commit", halt.exists, 120)
    finally:
        killed.send_signal(SIGKILL)
        said, _ = killed.communicate(timeout=30)
        sys.stderr.write(said)
    app, _, label = name.partition(".")
    assert site.count("django_migrations", f"app = '{app}' AND name = '{label}'") == 0


def use_all_of_it(site: Site, client: Client, browser: Client) -> None:
    """A task through every kind of wait, and what people and clients can do to others."""
    key = f"varied-{site.count('longwatch_task', '1 = 1')}"
    varied = {"workflow": "varied", "input": {"sink": str(site.sink)}}
    task = client.ask("/api/v1/tasks", varied, Idempotency_Key=key).json["id"]
    wait_for("it asks", lambda: is_waiting(client, task, "approval"))
    (question,) = client.ask(f"/api/v1/approvals?status=open&task={task}").json["items"]
    assert browser.ask(f"/approvals/{question['id']}/").status == 200
    act(client, f"approvals/{question['id']}/answer",
        decision="approve", digest=question["digest"], comment="yes")  # fmt: skip
    wait_for("it listens", lambda: is_waiting(client, task, "signal"))
    act(client, f"tasks/{task}/signals/go", data={"n": 1})
    client.wait_for_status(task, "completed")
    for part in ("outputs", "events", "artifacts", "spend"):
        assert client.ask(f"/api/v1/tasks/{task}/{part}").status == 200, part
    for page in ("/", f"/tasks/{task}/", "/workers/", "/approvals/", "/workflows/"):
        assert browser.ask(page).status == 200, page
    copy = act(client, f"tasks/{task}/fork", from_step="spawn")["id"]
    client.wait_for_status(copy, "completed")
    operate(client, varied)


def operate(client: Client, varied: dict[str, Any]) -> None:
    """Every action on a task that is not due for an hour."""
    due = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    task = act(client, "tasks", **varied, not_before=due.isoformat())["id"]
    act(client, f"tasks/{task}/change", priority=3, lane="other")
    act(client, f"tasks/{task}/limits", units=50)
    act(client, f"tasks/{task}/pause", reason="wait")
    act(client, f"tasks/{task}/resume")
    act(client, f"tasks/{task}/repair", to_step="produce", note="again")
    act(client, f"tasks/{task}/cancel", reason="enough")


def act(client: Client, path: str, **body: Any) -> dict[str, Any]:
    answer = client.ask(f"/api/v1/{path}", body)
    assert answer.status in {200, 201}, (path, answer)
    return dict(answer.json)


def is_waiting(client: Client, task: str, reason: str) -> bool:
    shown = client.ask(f"/api/v1/tasks/{task}").json
    assert shown["status"] not in {"dead", "failed"}, shown
    return (shown["status"], shown["status_reason"]) == ("waiting", reason)


def check_all(site: Site) -> None:
    """Nothing is lost, nothing ran twice, nobody was charged."""
    unfinished = "finished_at IS NULL"
    wait_for("all has come to its end", lambda: not site.count("longwatch_task", unfinished), 90)
    assert site.ask(f"SELECT * FROM longwatch_task WHERE {CHARGED}") == []
    assert site.ask(f"SELECT kind, data FROM longwatch_event WHERE {UNEXPECTED}") == []
    noted = [tuple(line.split()[:3]) for line in site.sink.read_text().splitlines()]
    paced = [one for one in noted if one[1] in {"begin", "work", "end"}]
    tasks = site.count("longwatch_task", "workflow = 'paced' AND status = 'completed'")
    assert len(paced) == len(set(paced)) == 3 * tasks, "each unit was begun once"
    live = "superseded_in_round IS NULL AND workflow = 'paced'"
    outputs = "longwatch_step_output o JOIN longwatch_task t ON t.id = o.task_id"
    assert site.count(outputs, live) == 3 * tasks
