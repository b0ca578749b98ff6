"""The settings of the library, with their defaults, and the checks of one entry of LOCKS.

LOCKS = {
    "redis": {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": "redis://...",
        "TTL": 6.0,        # seconds for which a grant lasts unless it is extended
        "TIMEOUT": 2.0,    # seconds for which a `with` statement waits
        "OPTIONS": {},     # specific to the backend
    },
}
LOCK_POLICY = {"BACKEND": "redis", "STRATEGY": "conditional"}    # the first policy
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from locking.backends.base import Backend
from locking.types import MAX_TTL, is_number

KEYS = {"BACKEND", "LOCATION", "TTL", "TIMEOUT", "OPTIONS"}
DEFAULT_LOCKS = {"default": {"BACKEND": "locking.backends.process.ProcessBackend"}}
"""Without LOCKS, locks exclude the threads and tasks of one process only."""


def lock_settings() -> Mapping[str, Mapping[str, Any]]:
    """Return LOCKS. Raise ImproperlyConfigured if it is not a dict with an entry."""
    found = getattr(settings, "LOCKS", DEFAULT_LOCKS)
    if not isinstance(found, Mapping) or not found:
        raise ImproperlyConfigured(f"LOCKS is {found!r:.60}: give a dict of alias to settings.")
    return found


def policy_settings() -> Mapping[str, Any]:
    """Return LOCK_POLICY; by default, the first entry of LOCKS and conditional writes."""
    default = {"BACKEND": next(iter(lock_settings())), "STRATEGY": "conditional"}
    found: Mapping[str, Any] = getattr(settings, "LOCK_POLICY", default)
    return found


def backend_class(conf: Mapping[str, Any]) -> type[Backend]:
    """Return the class that an entry of LOCKS names, or raise ImproperlyConfigured."""
    try:
        cls = import_string(conf["BACKEND"])
    except (ImportError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ImproperlyConfigured(
            f"BACKEND is {conf.get('BACKEND')!r}, which cannot be used: {error}"
        ) from error
    if not (isinstance(cls, type) and issubclass(cls, Backend)):
        raise ImproperlyConfigured(f"{conf['BACKEND']} is not a locking.backends.base.Backend.")
    return cls


def check_entry(alias: str, conf: Any) -> list[CheckMessage]:
    """Return the mistakes of one entry of LOCKS that are visible without asking its store."""
    where = f"LOCKS[{alias!r}]"
    if not isinstance(conf, Mapping):
        return [Error(f"{where} is {conf!r:.60}: give a dict.", id="locking.E001")]
    found: list[CheckMessage] = []
    if unknown := sorted(set(conf) - KEYS):
        found.append(Error(f"{where} has unknown keys: {', '.join(unknown)}.", id="locking.E001"))
    for number, key, at_most in (("E003", "TTL", MAX_TTL), ("E004", "TIMEOUT", MAX_TTL)):
        value = conf.get(key, 1)
        if not (is_number(value) and 0 < value <= at_most):
            text = f"{where} {key} is {value!r}: give seconds above 0, at most {at_most:g}."
            found.append(Error(text, id=f"locking.{number}"))
    try:
        cls = backend_class(conf)
    except ImproperlyConfigured as error:
        return [*found, Error(f"{where}: {error}", id="locking.E002")]
    return [*found, *cls.check(alias, conf)]
