"""One circuit breaker for each database server, for the lock backends and the project's queries."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.db import OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

from locking.backends.circuit_breaker import CircuitBreaker

T = TypeVar("T")

NOT_RESPONDING = "The database has not responded for a while"
SILENT_AFTER = 0.9
"""Seconds after which an error of the client means that its time limit was reached: limits are a
second or more, and a lost connection usually fails sooner."""

_breakers: dict[tuple[str, ...], CircuitBreaker] = {}


def breaker_of(database: BaseDatabaseWrapper) -> CircuitBreaker:
    """Return the circuit breaker that all connections to this server share in this process."""
    given = database.settings_dict
    server = "{HOST}:{PORT}".format_map(given)
    # Without a host, the options name the server: by a socket, a service or a file.
    key = database.vendor, server, "" if given["HOST"] else repr(given["OPTIONS"])
    found = _breakers.get(key)
    if found is None:
        made = CircuitBreaker(f"The database at {server}", partial(_probe, database.copy()))
        found = _breakers.setdefault(key, made)
    return found


def guarded(breaker: CircuitBreaker, call: Callable[..., T], *args: Any, **options: Any) -> T:
    """Return what the call returns. If it reaches a time limit of the client, open the breaker.

    Raise OperationalError at once while the breaker is open.
    """
    if breaker.is_open:
        raise OperationalError(NOT_RESPONDING)
    began = time.monotonic()
    try:
        return call(*args, **options)
    except Exception as error:
        if time.monotonic() - began > SILENT_AFTER and has_no_reply(error):
            breaker.open()
        raise


def has_no_reply(error: Exception) -> bool:
    """Return True for an error of a client's library, False for one that a server has sent."""
    if error.args and isinstance(error.args[0], int):
        return 2000 <= error.args[0] < 3000  # the range of MySQL's clients
    return getattr(error.__cause__ or error, "sqlstate", "unknown") is None


def _probe(database: BaseDatabaseWrapper) -> None:
    """Connect; any reply will do, also that the port is closed."""
    began = time.monotonic()
    try:
        database.Database.connect(**database.get_connection_params()).close()  # type: ignore[attr-defined]
    except Exception:
        if time.monotonic() - began > SILENT_AFTER:
            raise
