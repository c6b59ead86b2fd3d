"""The shop's settings as they were; the test appends the block of docs/embedding.md."""

import os
from pathlib import Path
from urllib.parse import urlsplit

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = "a shop's secret, long enough for every check that Django has of one"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
AUTH_USER_MODEL = "shop.Customer"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"
LANGUAGE_CODE = "de"
USE_THOUSAND_SEPARATOR = True
STATIC_URL = "/static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "shop",
    "django_q",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "shop" / "templates"],
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
Q_CLUSTER = {
    "name": "shop",
    "orm": "default",
    "workers": 1,
    "timeout": 30,
    "retry": 60,
    "poll": 0.2,
    "recycle": 7,
    "max_rss": 1,
    "cpu_affinity": 1,
}

_url = urlsplit(os.environ["SHOP_DATABASE"])
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{_url.scheme.replace('sqlite', 'sqlite3')}",
        "NAME": _url.path[1:] if _url.hostname else _url.path,
        "USER": _url.username or "",
        "HOST": _url.hostname or "",
        "PORT": _url.port or "",
        "ATOMIC_REQUESTS": True,
        "OPTIONS": {},
    }
}
if _url.scheme == "postgresql" and os.environ.get("SHOP_POOL"):
    DATABASES["default"]["OPTIONS"]["pool"] = {"min_size": 1, "max_size": 4}
