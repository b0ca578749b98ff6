"""The database behind a circuit breaker: while it does not reply, requests fail at once.

`shop.settings.base` limits each wait for a reply. The first one that reaches its limit opens the
breaker of this process.
"""

from contextlib import suppress
from functools import partial
from typing import Any

from django.db import DEFAULT_DB_ALIAS, InterfaceError, OperationalError, connections
from django.db.backends.signals import connection_created

from inventory.messages import reclassify
from locking.backends.database.breaker import breaker_of, guarded, has_no_reply


def guard_connections() -> None:
    """Put all connections of this process behind the breaker, and each attempt to connect."""
    engine: Any = type(connections[DEFAULT_DB_ALIAS])
    if engine.vendor == "sqlite":
        return
    connect = engine.connect
    # Django has no hook that comes before the connection.
    engine.connect = lambda self: guarded(breaker_of(self), connect, self)
    connection_created.connect(_guard_replies)


def _guard_replies(connection: Any, **_: Any) -> None:
    if _execute not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _execute)
    if connection.vendor == "postgresql":
        # psycopg has no limit of its own. It waits here for each reply: also for that to a COMMIT,
        # and to a message of `inventory.messages`.
        raw, breaker = connection.connection, breaker_of(connection)
        ms = connection.settings_dict["OPTIONS"].get("tcp_user_timeout")
        raw.wait = partial(guarded, breaker, partial(raw.wait, timeout=ms and ms / 1000))


def _execute(execute: Any, sql: str, params: Any, many: bool, context: dict[str, Any]) -> Any:
    connection = context["connection"]
    breaker = breaker_of(connection)
    try:
        return guarded(breaker, execute, sql, params, many, context)
    except (OperationalError, InterfaceError) as error:
        if breaker.is_open or has_no_reply(error):
            # Django closes it outside its translation of errors, and a lost connection fails again.
            with suppress(Exception):
                context["cursor"].close()
        if breaker.is_open:
            connection.close()  # it may not survive the fault, which nothing would notice
        reclassify(error)
        raise
