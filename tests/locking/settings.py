"""Settings of the library's tests where the shop is not installed; see `make test-library`."""

import os
from importlib.util import find_spec

import environ

from locking.backends.redis.connection import MINIMAL_HANDSHAKE

SECRET_KEY = "tests"  # noqa: S105
INSTALLED_APPS = [
    "locking",
    *(["django_celery_beat"] if find_spec("django_celery_beat") else []),
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "tests.locking.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

DATABASES = {"default": environ.Env.db_url_config(os.environ["DATABASE_URL"])}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    DATABASES["default"]["OPTIONS"] = {
        "transaction_mode": "IMMEDIATE",
        "timeout": 10,
        "init_command": "PRAGMA journal_mode=WAL",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "Asia/Shanghai"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]

REDIS_URL = os.environ["REDIS_URL"]
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": REDIS_URL,
        "KEY_PREFIX": "shop",
        "OPTIONS": {"socket_timeout": 0.5, **MINIMAL_HANDSHAKE},
    }
}
LOCKS = {
    "redis": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": REDIS_URL},
    "none": {"BACKEND": "locking.backends.none.NoneBackend"},
    "process": {"BACKEND": "locking.backends.process.ProcessBackend"},
    "database": {"BACKEND": "locking.backends.database.DatabaseBackend", "LOCATION": "default"},
    "redlock": {
        "BACKEND": "locking.backends.redlock.RedLockBackend",
        "LOCATION": os.environ["REDLOCK_URLS"].split(","),
    },
    "zookeeper": {
        "BACKEND": "locking.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": os.environ["ZOOKEEPER_HOSTS"],
    },
}
LOCK_SINGLE_FLIGHT = {"CACHE": "default", "LOCK": "redis"}
CELERY_BEAT_SCHEDULER = "locking.jobs.beat:Scheduler"
