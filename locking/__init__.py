"""Distributed locks for Django: one interface, every store.

    from locking import lock

    with lock("sale:42", timeout=2) as lease:  # LockTimeout when nobody lets go in 2 s
        ...                                    # lease.token grows with every grant

Names are loaded on first use, because Django reads this package before its settings are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from locking import single_flight
    from locking.exceptions import (
        IdempotencyError,
        KeyInFlight,
        KeyReused,
        KeyUnusable,
        LockError,
        LockLost,
        LockMisuse,
        LockTimeout,
        LockUnavailable,
    )
    from locking.handler import locks
    from locking.idempotency import Attempt, StoredResponse
    from locking.idempotency.views import idempotent
    from locking.jobs.run_once import current_run, run_once
    from locking.lease import Lease, Lock
    from locking.policy.lock import lock

_HOMES: dict[str, str | None] = {
    "Attempt": "idempotency",
    "IdempotencyError": "exceptions",
    "KeyInFlight": "exceptions",
    "KeyReused": "exceptions",
    "KeyUnusable": "exceptions",
    "Lease": "lease",
    "Lock": "lease",
    "LockError": "exceptions",
    "LockLost": "exceptions",
    "LockMisuse": "exceptions",
    "LockTimeout": "exceptions",
    "LockUnavailable": "exceptions",
    "StoredResponse": "idempotency",
    "current_run": "jobs.run_once",
    "idempotent": "idempotency.views",
    "lock": "policy.lock",
    "locks": "handler",
    "run_once": "jobs.run_once",
    "single_flight": None,
}

__all__ = [
    "Attempt",
    "IdempotencyError",
    "KeyInFlight",
    "KeyReused",
    "KeyUnusable",
    "Lease",
    "Lock",
    "LockError",
    "LockLost",
    "LockMisuse",
    "LockTimeout",
    "LockUnavailable",
    "StoredResponse",
    "current_run",
    "idempotent",
    "lock",
    "locks",
    "run_once",
    "single_flight",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home is None:
        return import_module(f"locking.{name}")
    return getattr(import_module(f"locking.{home}"), name)
