"""Migrations keep the state in Redis, and old code works beside their columns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection
from django.db.migrations import AddField
from django.db.migrations.executor import MigrationExecutor

from shop.models import Sale
from tests.shop.making import a_sale, fresh

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

BEFORE, AFTER = ("shop", "0007_key_per_sale"), ("shop", "0008_integer_generation")


@pytest.fixture
def migrated() -> Iterator[None]:
    """Migrate everything at the end: going back also undid apps that depend on the shop."""
    yield
    executor = MigrationExecutor(connection)
    executor.migrate(executor.loader.graph.leaf_nodes())


def test_generation_of_one_server_survives_as_a_number(migrated) -> None:
    """A sale with several shards is loaded again."""
    kept, new, sharded = (a_sale() for _ in "abc")
    Sale.objects.filter(pk=kept.pk).update(generation=2**31 - 1)
    MigrationExecutor(connection).migrate([BEFORE])
    with connection.cursor() as cursor:
        change = "UPDATE shop_sale SET generation = '12,345' WHERE id = %s"
        cursor.execute(change, [sharded.pk])
        cursor.execute("SELECT generation FROM shop_sale WHERE id = %s", [kept.pk])
        assert cursor.fetchone() == (str(2**31 - 1),), "the column of the version before"
    MigrationExecutor(connection).migrate([AFTER])
    assert [fresh(one).generation for one in (kept, new, sharded)] == [2**31 - 1, 0, 0]


def test_new_columns_do_not_stop_the_version_before() -> None:
    """Old code does not name them: without a default in the database its INSERTs fail."""
    earlier = {("shop", "sale", "is_listed"), ("loadtest", "labrun", "requested_fault")}
    migrations = MigrationExecutor(connection).loader.disk_migrations
    added = {
        (app, one.model_name_lower, one.name): one.field
        for (app, _), migration in migrations.items()
        for one in migration.operations
        if isinstance(one, AddField)
        and app in ("inventory", "loadtest", "locking", "shop", "waiting_room")
    }
    assert earlier <= added.keys()
    needed = [name for name, field in added.items() if not (field.null or field.has_db_default())]
    assert set(needed) == earlier
