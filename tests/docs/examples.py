"""The projects in which the Python blocks of the docs run: names that a reader would have.

An example runs the blocks of its page one after another in one namespace, and then checks that
they do what the page promises.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection, models
from django.test import RequestFactory, override_settings

from locking import LockLost, locks, single_flight
from locking.checks import check_locks, check_single_flight
from locking.jobs import runs

Names = dict[str, Any]
Run = Callable[[Names], Names]
"""Execute a page's blocks with these names, and return all names after it."""


def page_without_project(run: Run) -> None:
    run({})


def locks_page(run: Run) -> None:
    asyncio.run(run({})["report"]())


def idempotent_requests(run: Run) -> None:
    sent: list[tuple[object, str]] = []
    user = get_user_model().objects.create_user("li")
    names = run({"send_money": lambda user, what: sent.append((user, what))})
    form = {"amount": "5", "idempotency_key": str(uuid4())}
    for _ in range(2):
        request = RequestFactory().post("/transfer/", form)
        request.user = user
        assert names["transfer"](request).content == b'{"sent": "5"}'
        assert names["pay"](user, "k", "invoice 7") == b"paid"
    assert sent == [(user, "5"), (user, "invoice 7")]


def schedule_jobs(run: Run) -> None:
    written: list[list[datetime]] = []
    celery = Celery("docs", set_as_current=True)
    try:
        names = run({"read_ledger": lambda until: [until], "write": written.append})
        task, due = celery.tasks[names["settle_accounts"].name], datetime.now(UTC)
        for _ in range(2):
            task.apply(headers={runs.HEADER: due.isoformat()}).get()
    finally:
        import_module("shop.celery").app.set_current()
        celery.close()
    assert written == [[due]]


def cache_values(run: Run) -> None:
    built = count(1)
    lists = run({"read_lists": lambda: next(built)})["home_lists"]
    single_flight.invalidate("home")
    assert [lists("en"), lists("en"), lists("zh-hans")] == [1, 1, 2]


def no_hand_off(run: Run) -> None:
    measure = run({})["acquisitions_per_second"]
    assert measure(locks["process"], 0.001, threads=2, seconds=0.05) > 0


def guarantees(run: Run) -> None:
    class Account(models.Model):  # noqa: DJ008 - the reader's
        balance = models.IntegerField(default=0)
        epoch = models.PositiveIntegerField(default=0)
        token = models.BigIntegerField(default=0)

        class Meta:
            app_label = "documented"

    with connection.schema_editor() as schema:
        schema.create_model(Account)
    try:
        account = Account.objects.create()
        set_balance = run({"Account": Account})["set_balance"]
        set_balance(account.pk, 5)
        account.refresh_from_db()
        assert (account.balance, account.epoch > 0, account.token > 0) == (5, True, True)
        Account.objects.update(epoch=account.epoch + 1)  # a later holder
        with pytest.raises(LockLost):
            set_balance(account.pk, 6)
    finally:
        with connection.schema_editor() as schema:
            schema.delete_model(Account)
        del apps.all_models["documented"]["account"]


EXAMPLES: dict[str, Callable[[Run], None]] = {
    "docs/adr/0003-no-hand-off-inside-a-process.md": no_hand_off,
    "docs/how-to/cache-values.md": cache_values,
    "docs/how-to/idempotent-requests.md": idempotent_requests,
    "docs/how-to/schedule-jobs.md": schedule_jobs,
    "docs/library/README.md": page_without_project,
    "docs/library/choose-a-lock.md": page_without_project,
    "docs/library/guarantees.md": guarantees,
    "docs/reference/locks.md": locks_page,
    "docs/reference/settings.md": page_without_project,
}


def check_settings(names: Names) -> None:
    """Raise an error if Django or the library would refuse the settings of a block."""
    found = {name: value for name, value in names.items() if name.isupper()}
    for name, value in found.items():
        if name == "INSTALLED_APPS":
            for app in value:
                assert app is ... or import_module(app), app
        elif name.endswith("_SCHEDULER"):
            module, _, attribute = value.partition(":")
            assert hasattr(import_module(module), attribute), value
    for entry in found.get("LOCKS", {}).values():
        if str(entry.get("LOCATION", "")).startswith("redis://127.0.0.1"):
            entry["LOCATION"] = settings.REDIS_URL  # the private one
    ours = {name: value for name, value in found.items() if name.startswith("LOCK")}
    if ours:
        with override_settings(**ours):
            assert [*check_locks(), *check_single_flight()] == []


__all__ = ["EXAMPLES", "check_settings"]
