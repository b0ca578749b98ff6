"""Names of locks, and checks of the arguments of a lock."""

import hashlib
import math
from numbers import Real
from typing import TypeGuard

from locking.exceptions import LockMisuse

MAX_NAME = 200
"""Longest lock name, in characters, that every store can keep."""
MAX_TTL = 24 * 3600.0
"""Longest ttl, in seconds, that every store and every waiting thread can handle."""

IDEMPOTENCY_PREFIX, BUILD_PREFIX, UNIQUE_PREFIX = "idempotency:", "build:", "unique:"
SEMAPHORE_PREFIX, READ_WRITE_PREFIX = "semaphore:", "read-write:"
SHARED = (SEMAPHORE_PREFIX, READ_WRITE_PREFIX)
"""Prefixes of the names of locks that may have several holders."""
RESERVED = (IDEMPOTENCY_PREFIX, BUILD_PREFIX, UNIQUE_PREFIX, *SHARED)
"""Prefixes of names that a plain lock cannot have. No switch waits for them: the policy does not
choose their backend, or two holders do no harm."""


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a real number; a bool is none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def storable(name: str) -> str:
    """Return the name, or its start and a digest if no store could keep it."""
    if len(name) <= MAX_NAME and name.isprintable():
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return "".join(filter(str.isprintable, name[:80])) + f"#{digest}"


class ReservedName(str):
    """The name of one of the library's own locks, which begins with a reserved prefix."""

    __slots__ = ()


def check_name(name: str) -> None:
    """Raise LockMisuse if some store could not keep `name`, or if its prefix is reserved."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise LockMisuse(
            f"Invalid lock name {name!r:.40}: give 1 to {MAX_NAME} printable characters."
        )
    if name.startswith(RESERVED) and not isinstance(name, ReservedName):
        raise LockMisuse(
            f"Invalid lock name {name!r:.40}: names that begin with {' or '.join(RESERVED)} belong "
            "to the library, and no switch of the backend waits for them."
        )


def check_ttl(ttl: float) -> None:
    """Raise LockMisuse unless `ttl` is a possible lease in seconds."""
    if not (is_number(ttl) and 0 < ttl <= MAX_TTL):
        raise LockMisuse(f"Invalid ttl {ttl!r}: give seconds above 0, at most {MAX_TTL:g}.")


def check_timeout(timeout: float | None) -> None:
    """Raise LockMisuse unless `timeout` is None or seconds to wait."""
    if timeout is not None and not (is_number(timeout) and timeout >= 0):
        raise LockMisuse(
            f"Invalid timeout {timeout!r}: give seconds, 0 or more; math.inf waits forever."
        )


def check_wait(blocking: bool, timeout: float | None, default: float | None) -> float:
    """Return the seconds to wait for the arguments of `acquire`; math.inf waits forever."""
    if timeout is not None:
        check_timeout(timeout)
        if not blocking:
            raise LockMisuse("blocking=False cannot have a timeout: give one of them.")
        return timeout
    if not blocking:
        return 0.0
    return math.inf if default is None else default
