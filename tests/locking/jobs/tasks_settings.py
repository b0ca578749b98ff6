"""Settings of the project whose tasks run on TASKS_BACKEND; see test_task_workers.py."""

import os
from importlib.util import find_spec

import environ

PROJECT = "tests.locking.jobs.tasks_project"
BACKENDS = {
    "django_tasks_db": ("DatabaseBackend", {}),
    "django_ox": ("backend.OxBackend", {"LOCK_TIMEOUT": 2}),
    "django_tasks_celery": (
        "CeleryBackend",
        {"CELERY_APP": "tests.locking.jobs.tasks_project.app"},
    ),
}
INSTALLED = [package for package in BACKENDS if find_spec(package)]
_package = os.environ.get("TASKS_BACKEND", "django_tasks_db")
_backend, _options = BACKENDS[_package]

SECRET_KEY = "tests"  # noqa: S105
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "locking"]
INSTALLED_APPS += [] if _package == "django_tasks_celery" else [_package]
DATABASES = {"default": environ.Env.db_url_config(os.environ["DATABASE_URL"])}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOCKS = {
    "redis": {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": os.environ["REDIS_URL"],
        "TTL": 1.5,
    }
}
TASKS = {"default": {"BACKEND": f"{_package}.{_backend}", "OPTIONS": _options}}
