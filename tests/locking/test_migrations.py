"""Migrations keep the rows, and the columns that processes of the previous version read."""

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

from locking.models import LockPolicy, LockPolicyChange

BEFORE, AFTER = ("locking", "0004_held_lock"), ("locking", "0005_policy_mode")
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def migrate(target: tuple[str, str]):
    executor = MigrationExecutor(connection)
    executor.migrate([target])
    return MigrationExecutor(connection).loader.project_state([target]).apps


@pytest.fixture
def before() -> Iterator:
    """Return the models of the previous version, and migrate to the newest one at the end."""
    yield migrate(BEFORE)
    executor = MigrationExecutor(connection)
    executor.migrate([node for node in executor.loader.graph.leaf_nodes() if node[0] == "locking"])


def test_policy_mode_keeps_the_rows_for_old_and_new_processes(before) -> None:
    old_policy = before.get_model("locking", "LockPolicy")
    old_change = before.get_model("locking", "LockPolicyChange")
    old_policy.objects.create(
        backend="a", strategy="naive", epoch=7, next_backend="b", next_strategy="fenced"
    )
    old_change.objects.create(
        epoch=7, from_backend="b", from_strategy="fenced", to_backend="a", to_strategy="naive"
    )
    migrate(AFTER)
    row, change = LockPolicy.objects.get(), LockPolicyChange.objects.get()
    assert (row.active, row.upcoming, row.epoch) == ("a + naive", "b + fenced", 7)
    assert (change.old, change.new) == ("b + fenced", "a + naive")
    LockPolicy.objects.update(mode="conditional")
    assert old_policy.objects.get().strategy == "conditional"
    assert old_change.objects.get().from_strategy == "fenced"
