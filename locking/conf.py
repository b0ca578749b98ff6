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
LOCK_POLICY = {"BACKEND": "redis"}    # the first policy; see `Mode` for the keys MODES and MODE.
                                      # Without it, `lock()` always uses the first entry of LOCKS.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db.models import TextChoices
from django.utils.module_loading import import_string
from django.utils.translation import gettext

from locking.backends.base import Backend
from locking.exceptions import unknown
from locking.names import MAX_TTL, is_number

KEYS = {"BACKEND", "LOCATION", "TTL", "TIMEOUT", "OPTIONS"}
POLICY_KEYS = {"BACKEND", "MODE", "MODES"}
DEFAULT_LOCKS = {"default": {"BACKEND": "locking.backends.process.ProcessBackend"}}
"""Without LOCKS, locks exclude the threads and tasks of one process only."""


class Mode(TextChoices):
    """Base class of a project's modes; LOCK_POLICY["MODES"] names the subclass, "MODE" the first.

    The policy keeps the active one beside the backend, and each lease of the policy's lock carries
    it. What a mode means is up to the project, for instance how it writes what the lock guards.
    """

    @classmethod
    def title(cls) -> str:
        """Return the label of the choice between the modes."""
        return gettext("Mode")

    @property
    def warning(self) -> str:
        """Return what can go wrong in this mode, empty if it is safe with every backend."""
        return ""


def lock_settings() -> Mapping[str, Mapping[str, Any]]:
    """Return LOCKS. Raise ImproperlyConfigured if it is not a dict with an entry."""
    found = getattr(settings, "LOCKS", DEFAULT_LOCKS)
    if not isinstance(found, Mapping) or not found:
        raise ImproperlyConfigured(f"LOCKS is {found!r:.60}: give a dict of alias to settings.")
    return found


def has_policy() -> bool:
    """Return whether the project has a policy, which chooses the backend of `lock()`."""
    return hasattr(settings, "LOCK_POLICY")


def policy_settings() -> Mapping[str, Any]:
    """Return LOCK_POLICY; by default, the first entry of LOCKS without modes.

    Raise ImproperlyConfigured if it is not a dict.
    """
    default = {"BACKEND": next(iter(lock_settings()))}
    found = getattr(settings, "LOCK_POLICY", default)
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured(f"LOCK_POLICY is {found!r:.60}: give a dict.")
    return found


def modes() -> type[Mode]:
    """Return the modes of the project, `Mode` itself if it has none.

    Raise ImproperlyConfigured if LOCK_POLICY does not name a subclass of `Mode`.
    """
    path = policy_settings().get("MODES")
    return Mode if path is None else _import_subclass(Mode, path, "LOCK_POLICY MODES")


def mode_warning(mode: str) -> str:
    """Return the warning about a mode, empty if it is safe or the project has no modes."""
    known = modes()
    if mode in known.values:
        return known(mode).warning
    return unknown("mode", mode, known.values) if known.values else ""


def backend_class(conf: Mapping[str, Any]) -> type[Backend]:
    """Return the class that an entry of LOCKS names, or raise ImproperlyConfigured."""
    cls: type[Backend] = _import_subclass(Backend, conf.get("BACKEND"), "BACKEND")
    return cls


def _import_subclass(base: type[Any], path: Any, setting: str) -> Any:
    try:
        cls = import_string(path)
    except (ImportError, TypeError, AttributeError, ValueError) as error:
        problem = f"{setting} is {path!r}, which cannot be used: {error}"
        raise ImproperlyConfigured(problem) from error
    if not (isinstance(cls, type) and issubclass(cls, base)):
        raise ImproperlyConfigured(f"{path} is not a {base.__module__}.{base.__name__}.")
    return cls


def check_entry(alias: str, conf: Any) -> list[CheckMessage]:
    """Return the mistakes of one entry of LOCKS that are visible without asking its store."""
    where = f"LOCKS[{alias!r}]"
    if not isinstance(conf, Mapping):
        return [Error(f"{where} is {conf!r:.60}: give a dict.", id="locking.E001")]
    found: list[CheckMessage] = []
    if unknown := sorted(set(conf) - KEYS):
        found.append(Error(f"{where} has unknown keys: {', '.join(unknown)}.", id="locking.E001"))
    for number, key in (("E003", "TTL"), ("E004", "TIMEOUT")):
        value = conf.get(key, 1)
        if not (is_number(value) and 0 < value <= MAX_TTL):
            text = f"{where} {key} is {value!r}: give seconds above 0, at most {MAX_TTL:g}."
            found.append(Error(text, id=f"locking.{number}"))
    try:
        cls = backend_class(conf)
    except ImproperlyConfigured as error:
        return [*found, Error(f"{where}: {error}", id="locking.E002")]
    return [*found, *cls.check(alias, conf)]
