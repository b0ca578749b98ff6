"""The stores of `settings.LOCKS`: one per alias and process, created on first use."""

from __future__ import annotations

import atexit
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished, request_started, setting_changed
from django.dispatch import receiver

from locking.caller import current_caller
from locking.conf import backend_class, check_entry, lock_settings
from locking.exceptions import LockError, LockMisuse, unknown
from locking.fork import ForkSafeLock
from locking.lease.lease import State
from locking.lease.store import LockStore


class LockHandler:
    """A mapping of aliases to the locks of a backend, like django.core.cache.caches."""

    def __init__(self) -> None:
        self._stores: dict[str, LockStore] = {}
        self._guard = ForkSafeLock()

    def __getitem__(self, alias: str) -> LockStore:
        store = self._stores.get(alias)
        if store is not None:
            return store
        with self._guard:
            if alias not in lock_settings():
                raise LockMisuse(unknown("lock backend", alias, self))
            if alias not in self._stores:
                self._stores[alias] = create(alias, lock_settings()[alias])
            return self._stores[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(lock_settings())

    def opened(self) -> list[LockStore]:
        """Return the stores that this process has used."""
        return list(self._stores.values())

    def close(self) -> None:
        """Close all clients of this process; a store that is used again opens new ones."""
        with self._guard:
            stores, self._stores = self._stores, {}
        for store in stores.values():
            store.close()

    def release_left_behind(self, since: float) -> None:
        """Release what the caller acquired since that monotonic time and still holds.

        Not what waits for the end of a transaction.
        """
        for store in self.opened():
            for lease in store.leases_of(current_caller()):
                if lease.granted_at < since or lease.waits_for_commit:
                    continue
                if lease.state is not State.HANDED_OVER:
                    lease.log(logging.WARNING, "lock released: a request or task left it behind")
                lease.count = 1
                with suppress(LockError):
                    lease.release()


def create(alias: str, conf: Mapping[str, Any]) -> LockStore:
    """Return a new store for one entry of LOCKS; raise ImproperlyConfigured if it is wrong.

    A WSGI server does not run the system checks, so the entry is checked here too.
    """
    if mistakes := check_entry(alias, conf):
        raise ImproperlyConfigured(" ".join(mistake.msg for mistake in mistakes))
    given = {key.lower(): value for key, value in conf.items() if key != "BACKEND"}
    return LockStore(backend_class(conf)(alias, **given))


locks = LockHandler()
atexit.register(locks.close)


@receiver(setting_changed)
def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting == "LOCKS":
        locks.close()


_began: ContextVar[tuple[float, ...]] = ContextVar("locking_began", default=())
"""Monotonic times at which this request began, or these tasks inside of each other.

No thread-local: the requests of an event loop share the thread in which their signals are sent.
"""


def begin_work(**signal: object) -> None:
    """Note that a task begins here."""
    _began.set((*_began.get(), time.monotonic()))


@receiver(request_finished)
def end_work(**signal: object) -> None:
    """Release the locks that the task or request left behind."""
    if began := _began.get():
        _began.set(began[:-1])
        locks.release_left_behind(began[-1])


@receiver(request_started)
def _request_started(**kwargs: object) -> None:
    _began.set((time.monotonic(),))
