"""Settings of the deployable site. Everything that differs between sites is a LONGWATCH_* variable;
a wrong value ends the process at start with one sentence that names it and the cure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.utils.csp import CSP

from harness_site import env
from ledger.conf import Tunables

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = Path(os.environ.get("LONGWATCH_VAR") or BASE_DIR / "var").resolve()

DEBUG = env.read_flag("LONGWATCH_DEBUG")
SECRET_KEY = os.environ.get("LONGWATCH_SECRET_KEY") or env.read_or_make_secret(VAR / "secret_key")

# --- Ledger -------------------------------------------------------------------------------------
# A bound that is not in the environment is not set here: its default stands in ledger/conf.py.
_defaults = {f"LONGWATCH_{name.upper()}": v for name, v in dataclasses.asdict(Tunables()).items()}
for _name in _defaults.keys() & os.environ.keys():
    globals()[_name] = env.read_number(_name, _defaults[_name])

LONGWATCH_URL = env.read_url(
    "LONGWATCH_URL", f"http://localhost:{os.environ.get('PORT') or '8000'}"
)
LONGWATCH_WORKFLOWS = env.read_names("LONGWATCH_WORKFLOWS")
LONGWATCH_ARTIFACTS = os.environ.get("LONGWATCH_ARTIFACTS") or str(VAR / "artifacts")
LONGWATCH_VAR = str(VAR)
LONGWATCH_CHECKS = env.read_table("LONGWATCH_CHECKS")
LONGWATCH_RETENTION = env.read_table("LONGWATCH_RETENTION")
LONGWATCH_PRICES = env.read_table("LONGWATCH_PRICES")
LONGWATCH_CODE_MODEL = os.environ.get("LONGWATCH_CODE_MODEL", "").strip()
LONGWATCH_CODE_UNATTENDED = env.read_flag("LONGWATCH_CODE_UNATTENDED")
LONGWATCH_ENVIRONMENT = os.environ.get("LONGWATCH_ENVIRONMENT", "").strip()
LONGWATCH_ALERT_NETWORKS = env.read_names("LONGWATCH_ALERT_NETWORKS")

# --- Database -----------------------------------------------------------------------------------
_url = os.environ.get("LONGWATCH_DATABASE_URL")
DATABASES = {
    "default": env.parse_database(_url, BASE_DIR)
    if _url
    else env.parse_sqlite(f"/{env.ensure_folder(VAR) / 'longwatch.sqlite3'}", BASE_DIR)
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

_place = (DATABASES["default"].get(key) for key in ("ENGINE", "HOST", "PORT", "NAME"))
DATABASE_TAG = hashlib.sha256(repr(tuple(_place)).encode()).hexdigest()[:12]
"""Names what belongs to this database: a browser sends the cookies of one host to all its ports."""

# --- Workers ------------------------------------------------------------------------------------
_workers: int = globals().get("LONGWATCH_WORKERS", _defaults["LONGWATCH_WORKERS"])
Q_CLUSTER: dict[str, Any] = {
    "name": "longwatch",
    "broker_class": "ledger.cluster.LedgerBroker",
    "workers": _workers,
    "queue_limit": 4 * _workers,
    # Both only silence a warning: units have their own deadlines, leases their own expiry.
    "timeout": 60,
    "retry": 3600,
    "max_attempts": 1,
    "ack_failures": True,
    "save_limit": -1,
    "guard_cycle": 0.5,
    "scheduler": False,
    # In tickets, not units: a worker is replaced after about a day of tickets of 45 s.
    "recycle": 2000,
    "log_level": "WARNING",
}

# --- Django -------------------------------------------------------------------------------------
INSTALLED_APPS = [
    "dashboard.apps.DashboardConfig",
    "ledger.apps.LedgerConfig",  # before django_q: our qcluster command wins
    "harness_site",  # for its workflows
    "django_q",
    "django_htmx",
    "harness_site.admin_app.LongwatchAdminConfig",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "dashboard.polling.trim_unchanged",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.csp.ContentSecurityPolicyMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "harness_site.urls"
WSGI_APPLICATION = "harness_site.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True
DATA_UPLOAD_MAX_MEMORY_SIZE = 2_621_440  # JSON bodies; uploads are streamed past this

STATIC_URL = "static/"
STATIC_ROOT = VAR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
_statics = "django.contrib.staticfiles.storage.StaticFilesStorage"
STORAGES = {
    "default": {
        "BACKEND": "django.core.files.storage.FileSystemStorage",
        "OPTIONS": {"location": VAR / "uploads"},
    },
    "staticfiles": {
        "BACKEND": _statics if DEBUG else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

# --- People and safety --------------------------------------------------------------------------
_site = urlsplit(LONGWATCH_URL)
_https = _site.scheme == "https"
_host = f"[{_site.hostname}]" if ":" in str(_site.hostname) else str(_site.hostname)
ALLOWED_HOSTS = list(dict.fromkeys(["localhost", "127.0.0.1", "[::1]", _host]))
CSRF_TRUSTED_ORIGINS = [f"{_site.scheme}://{_site.netloc}"]

LOGIN_URL = "/login/"
LOGIN_REDIRECT_URL = "/"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
SESSION_COOKIE_NAME = f"longwatch_session_{DATABASE_TAG}"
CSRF_COOKIE_NAME = f"longwatch_csrf_{DATABASE_TAG}"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _https
SECURE_HSTS_SECONDS = 30 * 86_400 if _https else 0
SILENCED_SYSTEM_CHECKS = [
    "mail.E001",  # mail is one way to be told of three; without a server the page Alerts says so
    "security.W005",  # subdomains of the host belong to its owner, not to us
    "security.W021",  # so does a browser's preload list
    "security.W008",  # the proxy that ends TLS redirects; health checks stay on plain loopback
]
SECURE_CSP = {
    "default-src": [CSP.NONE],
    "script-src": [CSP.SELF],
    "style-src": [CSP.SELF],
    "img-src": [CSP.SELF, "data:"],
    "font-src": [CSP.SELF],
    "connect-src": [CSP.SELF],
    "form-action": [CSP.SELF],
    "base-uri": [CSP.NONE],
    "frame-ancestors": [CSP.NONE],
}
X_FRAME_OPTIONS = "DENY"

# --- Mail ---------------------------------------------------------------------------------------
MAILERS = {"default": env.parse_email(os.environ.get("LONGWATCH_EMAIL_URL", "").strip())}
DEFAULT_FROM_EMAIL = (
    os.environ.get("LONGWATCH_EMAIL_FROM", "").strip() or f"longwatch@{_site.hostname}"
)

DEFAULT_EXCEPTION_REPORTER_FILTER = "harness_site.reports.NoValues"

# --- Logs ---------------------------------------------------------------------------------------
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "()": "harness_site.logs.LineFormatter",
            "format": "{asctime} {levelname} {name} [{process}] {message}",
            "style": "{",
        },
    },
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
    "loggers": {
        # Django gives these handlers of their own; theirs would write each record twice.
        "django": {"handlers": [], "propagate": True},
        "django.server": {"handlers": [], "propagate": True},
    },
}
