"""Distributed locks for Django: one interface for several stores.

    from locking import lock

    with lock("report:42", timeout=2) as lease:  # LockTimeout if it stays held for 2 s
        ...                                      # lease.token grows with every grant

If the lease is lost, the block runs on; `lease.check()` and the end of the block raise LockLost.

What happens meanwhile, in the order to read it: `policy.lock` chooses the backend; `lease.lock` has
the `with` statement, whose steps (`lease.steps`) serve threads and tasks; a request for the lock is
a `claims.Claim`, a granted one a `lease.lease.Lease` with its states; `lease.watchdog` renews it
and notices its loss. A store is a module of `backends`; of Redis, `redis/backend.py` waits, and
`lua/redis_queue.lua` grants.

The rest is in modules of its own: `policy`, `jobs`, `idempotency`, `single_flight`, `testing`.
Most names are imported on first use: Django imports this package before settings are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from locking.exceptions import LockError, LockLost, LockMisuse, LockTimeout, LockUnavailable

if TYPE_CHECKING:
    from locking.handler import locks
    from locking.lease import Lease, Lock
    from locking.models import Fenced
    from locking.policy.decorators import locked
    from locking.policy.lock import lock

_MODULES = {
    "Fenced": "models",
    "Lease": "lease",
    "Lock": "lease",
    "lock": "policy.lock",
    "locked": "policy.decorators",
    "locks": "handler",
}

__all__ = [
    "Fenced",
    "Lease",
    "Lock",
    "LockError",
    "LockLost",
    "LockMisuse",
    "LockTimeout",
    "LockUnavailable",
    "lock",
    "locked",
    "locks",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"locking.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
