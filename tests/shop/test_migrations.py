"""Old code works beside the columns of newer migrations."""

from __future__ import annotations

import pytest
from django.db import connection
from django.db.migrations import AddField
from django.db.migrations.executor import MigrationExecutor


@pytest.mark.django_db
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
