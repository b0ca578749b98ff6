"""What the fork server of `lock_worker.py` imports once for all its processes."""

import os
from contextlib import suppress
from importlib import import_module

import django

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.locking.settings"  # not all of the shop
django.setup()
for module in ("kazoo.client", "MySQLdb", "psycopg", "pytest", "redis"):
    with suppress(ImportError):
        import_module(module)
import_module("tests.locking.lock_worker")
