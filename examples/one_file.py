"""A Django project in one file that needs no server: four processes withdraw from one account.

    python one_file.py

Each withdrawal reads the balance and writes it back. Without the lock, some overwrite others.
"""

import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier

import django
from django.conf import settings
from django.core.management import call_command

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "locking"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.sqlite3",
                "NAME": "one_file.sqlite3",
                "OPTIONS": {
                    "transaction_mode": "IMMEDIATE",
                    "timeout": 10,
                    "init_command": "PRAGMA journal_mode=WAL",
                },
            }
        },
        LOCKS={
            "database": {
                "BACKEND": "locking.backends.database.DatabaseBackend",
                "LOCATION": "default",
            }
        },
        USE_TZ=True,
    )
    django.setup()

from django.db import connection

from locking import lock

PROCESSES, WITHDRAWALS = 4, 25


def execute(statement: str, *values: int) -> list[tuple[int, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def balance() -> int:
    return execute("SELECT balance FROM account")[0][0]


def withdraw_one() -> None:
    before = balance()
    time.sleep(0.001)  # the work between the read and the write
    execute("UPDATE account SET balance = %s", before - 1)


def withdraw(is_locked: bool) -> None:
    for _ in range(WITHDRAWALS):
        if is_locked:
            with lock("account:1", timeout=30):
                withdraw_one()
        else:
            withdraw_one()


def start_together(barrier: Barrier) -> None:
    barrier.wait()


def main() -> int:
    context = get_context("spawn")
    call_command("migrate", verbosity=0)
    execute("CREATE TABLE IF NOT EXISTS account (balance INTEGER)")
    for is_locked in (False, True):
        execute("DELETE FROM account")
        execute("INSERT INTO account VALUES (%s)", PROCESSES * WITHDRAWALS)
        together = context.Barrier(PROCESSES)
        with ProcessPoolExecutor(PROCESSES, context, start_together, (together,)) as pool:
            list(pool.map(withdraw, [is_locked] * PROCESSES))
        print(f"{'with' if is_locked else 'without'} the lock: {balance()} left of", end=" ")
        print(PROCESSES * WITHDRAWALS)
    return balance()


if __name__ == "__main__":
    sys.exit(main())
