"""The password hashers, limited so that sign-ins leave threads and CPU to purchases and probes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import BoundedSemaphore, Lock
from typing import Any

from django.conf import settings
from django.contrib.auth import hashers
from django.utils.translation import gettext as _

from locking.fork import after_fork_in_child
from shop.errors import Overloaded

BURST = 60
"""Threads of one process that may wait for a hash after a pause, one after the other; together they
take 1.5 s."""
PER_SECOND = 20
"""Further threads per second that may wait."""
RETRY_AFTER = 2


class LimitedArgon2Hasher(hashers.Argon2PasswordHasher):
    """Argon2id with the smallest parameters that OWASP recommends: 19 MiB, two passes, one lane.

    Every sign-in, sign-up and password change uses it, those of the admin too.
    """

    time_cost, memory_cost, parallelism = 2, 19 * 1024, 1

    def encode(self, *arguments: Any) -> str:
        """Return the hash with its parameters, or raise Overloaded."""
        with limiter(settings.MAX_HASHES).turn():
            return super().encode(*arguments)

    def verify(self, *arguments: Any) -> bool:
        """Return True if the password is correct, or raise Overloaded; it does not encode."""
        with limiter(settings.MAX_HASHES).turn():
            return super().verify(*arguments)


class LimitedPBKDF2Hasher(hashers.PBKDF2PasswordHasher):
    """Verifies the hashes of earlier versions; a sign-in replaces them. `verify` encodes."""

    def encode(self, *arguments: Any) -> str:
        """Return the hash with its parameters, or raise Overloaded."""
        with limiter(settings.MAX_HASHES).turn():
            return super().encode(*arguments)


class _Limiter:
    """The hashes of one process: few at a time, and a limited number of threads waits for them.

    A burst of sign-ins is served. While more arrive than can be hashed, most are refused at once,
    because each that waited would occupy a thread.
    """

    def __init__(self, at_a_time: int) -> None:
        self._slots = BoundedSemaphore(at_a_time)
        self._guard = Lock()
        self._booked_until = 0.0  # monotonic; each wait books 1 / PER_SECOND

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, or raise Overloaded at once."""
        if not self._slots.acquire(blocking=False):
            self._book()
            self._slots.acquire()
        try:
            yield
        finally:
            self._slots.release()

    def _book(self) -> None:
        now = time.monotonic()
        with self._guard:
            booked = max(self._booked_until, now) + 1 / PER_SECOND
            if booked > now + BURST / PER_SECOND:
                advice = _("Many customers are signing in right now. Please try again in a moment.")
                raise Overloaded(advice, retry_after=RETRY_AFTER)
            self._booked_until = booked


@cache
def limiter(at_a_time: int) -> _Limiter:
    """Return the limiter of this process."""
    return _Limiter(at_a_time)


after_fork_in_child(limiter.cache_clear)
