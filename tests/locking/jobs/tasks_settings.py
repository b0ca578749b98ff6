"""Settings of the project whose tasks run on TASKS_BACKEND; see test_task_workers.py."""

import os
from importlib.util import find_spec

from tests.locking.settings import *  # noqa: F403
from tests.locking.settings import INSTALLED_APPS, LOCKS

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

INSTALLED_APPS += [] if _package == "django_tasks_celery" else [_package]
LOCKS = {"redis": {**LOCKS["redis"], "TTL": 1.5}}
TASKS = {"default": {"BACKEND": f"{_package}.{_backend}", "OPTIONS": _options}}
