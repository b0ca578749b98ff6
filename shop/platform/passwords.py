"""The password hasher, limited so that sign-ins leave threads and CPU to purchases and probes."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import BoundedSemaphore

from django.conf import settings
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.utils.translation import gettext as _

from locking.fork import after_fork_in_child
from shop.errors import Overloaded

WAIT = 1.0
"""Seconds for which a thread waits until it may hash."""
RETRY_AFTER = 2
FREE_THREADS = 2
"""Threads of a process that neither hash a password nor wait for it."""


class LimitedPBKDF2Hasher(PBKDF2PasswordHasher):
    """Django's default hasher; raises Overloaded while too many threads of the process need it.

    Every sign-in, sign-up and password change uses it, those of the admin too.
    """

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        """Return the hash with its parameters, or raise Overloaded after at most WAIT seconds."""
        threads = max(1, settings.WEB_THREADS - FREE_THREADS)
        with _slot("thread", threads, wait=0), _slot("hash", settings.MAX_HASHES, wait=WAIT):
            return super().encode(password, salt, iterations)


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
