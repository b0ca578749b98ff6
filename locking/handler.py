"""The backends of `settings.LOCKS`: one per alias and process, created on first use.

LOCKS = {
    "redis": {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": "redis://...",
        "TTL": 6.0,        # seconds for which a grant lasts unless it is extended
        "TIMEOUT": 2.0,    # seconds for which a `with` statement waits
        "OPTIONS": {},     # specific to the backend
    },
}
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.dispatch import receiver
from django.utils.module_loading import import_string

from locking.backends.base import Backend
from locking.exceptions import LockMisuse

KEYS = {"BACKEND", "LOCATION", "TTL", "TIMEOUT", "OPTIONS"}


class LockHandler:
    """A mapping of aliases to backends, like django.core.cache.caches."""

    def __init__(self) -> None:
        self._backends: dict[str, Backend] = {}
        self._guard = threading.RLock()

    def __getitem__(self, alias: str) -> Backend:
        backend = self._backends.get(alias)
        if backend is not None:
            return backend
        with self._guard:
            if alias not in settings.LOCKS:
                known = ", ".join(self) or "none"
                raise LockMisuse(
                    f"There is no lock backend {alias!r} in LOCKS; there are: {known}."
                )
            if alias not in self._backends:
                self._backends[alias] = create(alias, settings.LOCKS[alias])
            return self._backends[alias]

    def __iter__(self) -> Iterator[str]:
        return iter(settings.LOCKS)

    def opened(self) -> list[Backend]:
        """Return the backends that this process has used."""
        return list(self._backends.values())

    def close(self) -> None:
        """Close all clients of this process; a backend that is used again opens new ones."""
        with self._guard:
            backends, self._backends = self._backends, {}
        for backend in backends.values():
            backend.close()


def backend_class(conf: dict[str, Any]) -> type[Backend]:
    """Return the class that a LOCKS entry names, or raise ImproperlyConfigured."""
    try:
        cls = import_string(conf["BACKEND"])
    except (ImportError, KeyError) as error:
        raise ImproperlyConfigured(
            f"LOCKS has an entry without a usable BACKEND: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise ImproperlyConfigured(f"{conf['BACKEND']} is not a locking.backends.base.Backend.")
    return cls


def create(alias: str, conf: dict[str, Any]) -> Backend:
    """Return a new backend for one entry of LOCKS."""
    unknown = set(conf) - KEYS
    if unknown:
        raise ImproperlyConfigured(f"LOCKS[{alias!r}] has unknown keys: {', '.join(unknown)}.")
    return backend_class(conf)(
        alias,
        location=conf.get("LOCATION", ""),
        ttl=conf.get("TTL", 6.0),
        timeout=conf.get("TIMEOUT", 2.0),
        options=conf.get("OPTIONS"),
    )


locks = LockHandler()
atexit.register(locks.close)


@receiver(setting_changed)
def _settings_changed(*, setting: str, **kwargs: object) -> None:
    if setting == "LOCKS":
        locks.close()
