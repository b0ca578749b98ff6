"""Distributed locks for Django: one interface for several stores.

    from locking import lock

    with lock("report:42", timeout=2) as lease:  # LockTimeout if it stays held for 2 s
        ...                                      # lease.token grows with every grant

Most names are imported on first use: Django imports this package before settings are ready.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from locking import single_flight
    from locking.handler import locks
    from locking.idempotency import Attempt, StoredResponse
    from locking.idempotency.views import idempotent
    from locking.jobs.run_once import current_run, run_once
    from locking.jobs.unique import unique
    from locking.lease import Lease, Lock
    from locking.models import Fenced
    from locking.policy.decorators import locked
    from locking.policy.lock import lock

_MODULES = {
    "handler": ("locks",),
    "idempotency": ("Attempt", "StoredResponse"),
    "idempotency.views": ("idempotent",),
    "jobs.run_once": ("current_run", "run_once"),
    "jobs.unique": ("unique",),
    "lease": ("Lease", "Lock"),
    "models": ("Fenced",),
    "policy.decorators": ("locked",),
    "policy.lock": ("lock",),
}

__all__ = [
    "Attempt",
    "Fenced",
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
    "idempotent",
    "lock",
    "locked",
    "locks",
    "single_flight",
]
if find_spec("celery"):  # without it, `from locking import *` must not import them
    __all__ += ["current_run", "run_once", "unique"]


def __getattr__(name: str) -> Any:
    if name == "single_flight":
        return import_module("locking.single_flight")
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"locking.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
