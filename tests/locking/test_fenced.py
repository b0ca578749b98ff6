"""`locking.models.Fenced`: one UPDATE that a stale holder cannot make."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.db import connection, models
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from locking import Fenced

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


@pytest.fixture
def account() -> Iterator[Any]:
    """Return a row of a model of its own."""

    class Account(Fenced):
        balance = models.IntegerField(default=0)

        class Meta:
            app_label = "fenced"

        def __str__(self) -> str:
            return "account"

    with connection.schema_editor() as schema:
        schema.create_model(Account)
    try:
        yield Account.objects.create()
    finally:
        with connection.schema_editor() as schema:
            schema.delete_model(Account)
        del apps.all_models["fenced"]["account"]


def test_newer_or_equal_fence_writes_and_an_older_one_does_not(account) -> None:
    other = type(account).objects.create()
    assert account.fenced_update((1, 5), balance=1)
    assert account.fenced_update((1, 5), balance=2)
    assert account.fenced_update([1, 6], balance=3)
    assert not account.fenced_update((1, 5), balance=4)
    assert not account.fenced_update((0, 99), balance=4)
    assert not account.fenced_update(7, balance=4), "a token alone has epoch 0"
    assert (account.balance, account.fence_epoch, account.fence_token) == (3, 1, 6)
    assert account.fenced_update((2, 1), balance=5)
    account.refresh_from_db()
    assert (account.balance, account.fence_epoch, account.fence_token) == (5, 2, 1)
    other.refresh_from_db()
    assert (other.balance, other.fence_token) == (0, 0)


def test_write_is_one_statement(account) -> None:
    with CaptureQueriesContext(connection) as queries:
        assert account.fenced_update((1, 5), balance=F("balance") + 2)
    (only,) = queries.captured_queries
    assert only["sql"].startswith("UPDATE")
    account.save()  # must not add a second time
    assert account.balance == 2
    account.refresh_from_db()
    assert (account.balance, account.fence_token) == (2, 5)
