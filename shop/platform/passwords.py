"""The password hashers, limited so that sign-ins leave threads and CPU to purchases and probes.

nginx lets bursts of sign-ins wait (deploy/nginx.conf): here, each that waits occupies a thread.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import BoundedSemaphore
from typing import Any

from django.conf import settings
from django.contrib.auth import hashers
from django.utils.translation import gettext as _

from locking.fork import after_fork_in_child
from shop.errors import Overloaded

WAIT = 1.0
"""Seconds for which a thread waits until it may hash."""
RETRY_AFTER = 2
FREE_THREADS = 2
"""Threads of a process that neither hash a password nor wait for it."""


class LimitedArgon2Hasher(hashers.Argon2PasswordHasher):
    """Argon2id with the smallest parameters that OWASP recommends: 19 MiB, two passes, one lane.

    Every sign-in, sign-up and password change uses it, those of the admin too.
    """

    time_cost, memory_cost, parallelism = 2, 19 * 1024, 1

    def encode(self, *arguments: Any) -> str:
        """Return the hash with its parameters, or raise Overloaded after at most WAIT seconds."""
        with _turn():
            return super().encode(*arguments)

    def verify(self, *arguments: Any) -> bool:
        """Return True if the password is correct, or raise Overloaded; it does not encode."""
        with _turn():
            return super().verify(*arguments)


class LimitedPBKDF2Hasher(hashers.PBKDF2PasswordHasher):
    """Verifies the hashes of earlier versions; a sign-in replaces them. `verify` encodes."""

    def encode(self, *arguments: Any) -> str:
        """Return the hash with its parameters, or raise Overloaded after at most WAIT seconds."""
        with _turn():
            return super().encode(*arguments)


@contextmanager
def _turn() -> Iterator[None]:
    threads = max(1, settings.WEB_THREADS - FREE_THREADS)
    with _slot("thread", threads, wait=0), _slot("hash", settings.MAX_HASHES, wait=WAIT):
        yield


@contextmanager
def _slot(kind: str, number: int, *, wait: float) -> Iterator[None]:
    slots = _slots(kind, number)
    if not slots.acquire(timeout=wait):
        advice = _("Many customers are signing in right now. Please try again in a moment.")
        raise Overloaded(advice, retry_after=RETRY_AFTER)
    try:
        yield
    finally:
        slots.release()


@cache
def _slots(kind: str, number: int) -> BoundedSemaphore:
    return BoundedSemaphore(number)


after_fork_in_child(_slots.cache_clear)
