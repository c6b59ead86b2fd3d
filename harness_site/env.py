"""Typed readers of environment variables. Each raises ImproperlyConfigured with the cure in it."""

from __future__ import annotations

import json
import os
import secrets
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

YES, NO = {"1", "true", "yes", "on"}, {"0", "false", "no", "off", ""}

SQLITE_OPTIONS = {
    # A write transaction takes its lock when it begins: one that reads first and writes later
    # could not be upgraded while another writes, and no timeout helps against that.
    "transaction_mode": "IMMEDIATE",
    "timeout": 30,
    # FULL: an accepted output survives a power cut. NORMAL would lose the last commits.
    # A reader that stays keeps the WAL growing; 16 MiB of it are kept once he has gone.
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; "
    "PRAGMA journal_size_limit=16777216",
}

POSTGRESQL_OPTIONS = {
    "application_name": "longwatch",
    "connect_timeout": 10,
    # A database that vanished without a word is noticed within half a minute, not in two hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,  # milliseconds
    # A lock that somebody keeps, or a query gone wrong, ends as a 503 or as another try, not as a
    # thread that waits for ever. `migrate` has bounds of its own.
    "options": "-c lock_timeout=10s -c statement_timeout=60s",
}


def read_flag(name: str) -> bool:
    """A yes or no; unset is no."""
    value = os.environ.get(name, "").strip().lower()
    if value not in YES | NO:
        raise ImproperlyConfigured(f"{name} is {value!r}; write 1 or 0.")
    return value in YES


def read_names(name: str) -> list[str]:
    """A comma-separated list; unset is empty."""
    return [part.strip() for part in os.environ.get(name, "").split(",") if part.strip()]


def read_table(name: str) -> dict[str, Any]:
    """What the file holds that the variable names: TOML, or JSON by its ending; unset is empty."""
    path = os.environ.get(name, "").strip()
    if not path:
        return {}
    try:
        text = Path(path).read_text()
        found = json.loads(text) if path.endswith(".json") else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise ImproperlyConfigured(f"{name}: the file {path} can't be read: {error}.") from None
    return dict(found)


def read_number(name: str, default: float | str) -> Any:
    """A value of the default's own type, which a person typed."""
    text = os.environ[name].strip()
    kind = type(default)
    try:
        value = kind(text)
    except ValueError:
        raise ImproperlyConfigured(
            f"{name} is {text!r}; it takes a number such as {default}."
        ) from None
    if not isinstance(value, str) and not 0 <= value < float("inf"):
        raise ImproperlyConfigured(f"{name} is {text!r}; it can't be negative or endless.")
    return value


def read_url(name: str, default: str) -> str:
    """An http(s) address of a site, without a trailing slash."""
    url = os.environ.get(name, "").strip() or default
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise ImproperlyConfigured(f"{name} is {url!r}; write it as https://longwatch.example.org")
    return url.rstrip("/")


def parse_database(url: str, base: Path) -> dict[str, Any]:
    """`sqlite:///PATH` or `postgresql://USER:PASSWORD@HOST:PORT/NAME?OPTION=VALUE` for DATABASES.

    A relative SQLite path (three slashes) counts from `base`; an absolute one has four.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        # Not `url` itself: it may hold a password.
        raise ImproperlyConfigured(f"LONGWATCH_DATABASE_URL can't be read: {error}.") from None
    if parts.scheme == "sqlite":
        return parse_sqlite(parts.path, base)
    if parts.scheme not in {"postgresql", "postgres"}:
        raise ImproperlyConfigured(
            f"LONGWATCH_DATABASE_URL begins with {parts.scheme!r}; it takes sqlite:///PATH or "
            "postgresql://USER:PASSWORD@HOST:PORT/NAME."
        )
    options = dict(parse_qsl(parts.query))
    host = options.pop("host", "") or unquote(parts.hostname or "")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path[1:]) or "longwatch",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": host,
        "PORT": str(port or ""),
        # A worker holds its connection for life; a dead one is replaced before the next use.
        "CONN_MAX_AGE": None,
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": POSTGRESQL_OPTIONS | options,
    }


def parse_sqlite(path: str, base: Path) -> dict[str, Any]:
    """The SQLite half of `parse_database`; the file's folder must exist."""
    file = base / unquote(path).removeprefix("/")
    if path in {"", "/"} or ":memory:" in path:
        raise ImproperlyConfigured(
            "LONGWATCH_DATABASE_URL names no file. Web and workers share one: sqlite:///PATH."
        )
    if not file.parent.is_dir():
        raise ImproperlyConfigured(
            f"LONGWATCH_DATABASE_URL: the folder {file.parent} does not exist. Make it, or write "
            "four slashes for an absolute path: sqlite:////srv/longwatch.sqlite3"
        )
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(file),
        "CONN_MAX_AGE": None,
        "OPTIONS": dict(SQLITE_OPTIONS),
    }


def ensure_folder(folder: Path) -> Path:
    """The folder, made if missing, in which this process can write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ImproperlyConfigured(
            f"{folder} can't be made ({error.strerror}). Free that path, or set LONGWATCH_VAR to "
            "a folder that this user may write."
        ) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ImproperlyConfigured(
            f"{folder} is not writable by this user. Run `chown -R {os.getuid()} {folder}`, or "
            "set LONGWATCH_VAR to a folder that is."
        )
    return folder


def read_or_make_secret(file: Path) -> str:
    """The secret key kept in `file`, made (mode 0600) by the first process that needs it.

    Web and workers may start at the same instant: the complete file is linked into place, which
    fails for all but one, and everybody reads what that one wrote.
    """
    if not file.exists():
        ensure_folder(file.parent)
        draft = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        try:
            draft.touch(mode=0o600, exist_ok=False)
            draft.write_text(secrets.token_urlsafe(48))
            try:
                os.link(draft, file)
            except FileExistsError:
                pass
            finally:
                draft.unlink()
        except OSError as error:
            raise ImproperlyConfigured(
                f"No secret key could be written to {file} ({error.strerror}). Set "
                "LONGWATCH_SECRET_KEY, or make the folder writable."
            ) from None
    try:
        key = file.read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"The secret key in {file} can't be read ({error.strerror}). Run as the user that "
            "made it, or set LONGWATCH_SECRET_KEY."
        ) from None
    if len(key) < 32:
        raise ImproperlyConfigured(f"{file} holds no usable key. Delete it; a new one is made.")
    return key


def parse_email(url: str) -> dict[str, Any]:
    """`smtp://USER:PASSWORD@HOST:PORT` (`?tls=1` for STARTTLS) or `smtps://…` for MAILERS; empty:
    mails are written to the log."""
    backends = "django.core.mail.backends"
    if not url:
        return {"BACKEND": f"{backends}.console.EmailBackend"}
    try:
        parts = urlsplit(url)
        port = parts.port
        if parts.scheme not in {"smtp", "smtps"} or not parts.hostname:
            raise ValueError("it takes smtp://USER:PASSWORD@HOST:PORT, ?tls=1 or smtps://")
    except ValueError as error:
        # Not `url` itself: it may hold a password.
        raise ImproperlyConfigured(f"LONGWATCH_EMAIL_URL can't be read: {error}.") from None
    secure = parts.scheme == "smtps"
    tls = dict(parse_qsl(parts.query)).get("tls", "").lower() in YES
    options = {
        "host": parts.hostname,
        "port": port or (465 if secure else 587 if tls else 25),
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "use_ssl": secure,
        "use_tls": tls and not secure,
        "timeout": 10,
    }
    return {"BACKEND": f"{backends}.smtp.EmailBackend", "OPTIONS": options}
