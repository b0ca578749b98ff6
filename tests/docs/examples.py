"""The projects in which the Python blocks of the docs run: names that a reader would have.

An example runs the blocks of its page one after another in one namespace, and then checks that
they do what the page promises.
"""

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
from django.db import connection
from django.test import RequestFactory, override_settings

from locking import LockLost, locks, single_flight
from locking.checks import check_locks, check_single_flight
from locking.jobs import runs

Names = dict[str, Any]
Run = Callable[[Names], Names]
"""Execute a page's blocks with these names, and return all names after it."""


def page_without_project(run: Run) -> None:
    run({})


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
            names["every_hour"]()
    finally:
        import_module("shop.celery").app.set_current()
        celery.close()
    assert written == [[due], [due.replace(minute=0, second=0, microsecond=0)]]


def cache_values(run: Run) -> None:
    built = count(1)
    lists = run({"read_lists": lambda: next(built)})["home_lists"]
    single_flight.invalidate("home")
    assert [lists("en"), lists("en"), lists("zh-hans")] == [1, 1, 2]


def no_hand_off(run: Run) -> None:
    measure = run({})["acquisitions_per_second"]
    assert measure(locks["process"], 0.001, threads=2, seconds=0.05) > 0


def guarantees(run: Run) -> None:
    names = run({})
    account, set_balance = names["Account"], names["set_balance"]
    with connection.schema_editor() as schema:
        schema.create_model(account)
    try:
        row = account.objects.create()
        set_balance(row.pk, 5)
        row.refresh_from_db()
        assert (row.balance, row.fence_epoch > 0, row.fence_token > 0) == (5, True, True)
        account.objects.update(fence_epoch=row.fence_epoch + 1)  # a later holder
        with pytest.raises(LockLost):
            set_balance(row.pk, 6)
    finally:
        with connection.schema_editor() as schema:
            schema.delete_model(account)
        del apps.all_models["bank"]["account"]


def views_and_tasks(run: Run) -> None:
    moved: list[tuple[int, int, int]] = []
    written: list[tuple[int, tuple[int, int]]] = []
    reminded: list[int] = []
    celery = Celery("docs", set_as_current=True)
    celery.conf.task_always_eager = True
    try:
        names = run(
            {
                "move": lambda *what: moved.append(what),
                "remember": reminded.append,
                "write": lambda pk, fence: written.append((pk, fence)),
            }
        )
        assert list(names["transfer"](7, 4, 50)) == ["account:4", "account:7"]
        assert moved == [(7, 4, 50)]
        names["remind"].delay(42)
        assert reminded == [42]
        assert names["request_rebuild"](7) != names["request_rebuild"](7)
        assert names["request_restock"](8)
        assert reminded == [42, 7, 7, 8]
        assert names["pay"](RequestFactory().post("/"), 42).content == b"paid 42"
        assert names["invoice"](RequestFactory().post("/"), 42).status_code == 202
        ((pk, (epoch, token)),) = written
        assert (pk, epoch > 0, token > 0) == (42, True, True)
        assert not names["lock"]("invoice:42").locked()
    finally:
        import_module("shop.celery").app.set_current()
        celery.close()


def shared_locks(run: Run) -> None:
    products: list[str] = []
    names = run({"resize": lambda picture: picture * 2, "products": products})
    assert names["convert"]("x") == "xx"
    first = names["load"](["lamp"])
    assert names["export"]() == ["lamp"]
    assert names["load"]([]) > first > 0
    assert not names["catalogue"].write().locked()


EXAMPLES: dict[str, Callable[[Run], None]] = {
    "docs/adr/0003-no-hand-off-inside-a-process.md": no_hand_off,
    "docs/how-to/cache-values.md": cache_values,
    "docs/how-to/idempotent-requests.md": idempotent_requests,
    "docs/how-to/schedule-jobs.md": schedule_jobs,
    "locking/README.md": page_without_project,
    "docs/library/choose-a-lock.md": page_without_project,
    "docs/library/guarantees.md": guarantees,
    "docs/library/semaphores.md": shared_locks,
    "docs/library/views-and-tasks.md": views_and_tasks,
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
