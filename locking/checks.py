"""System checks that reject wrong lock settings at start-up."""

from __future__ import annotations

import math
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from locking import single_flight
from locking.handler import KEYS, backend_class
from locking.models import WriteStrategy
from locking.types import is_number


def _is_positive(value: object) -> bool:
    return is_number(value) and 0 < value < math.inf


@register()
def check_locks(**kwargs: Any) -> list[CheckMessage]:
    """Check the entries of LOCKS, each backend's own settings, and LOCK_POLICY."""
    found: list[CheckMessage] = []

    def add(number: str, message: str) -> None:
        found.append(Error(message, id=f"locking.{number}"))

    for alias, conf in settings.LOCKS.items():
        where = f"LOCKS[{alias!r}]"
        if unknown := sorted(set(conf) - KEYS):
            add("E001", f"{where} has unknown keys: {', '.join(unknown)}.")
        try:
            cls = backend_class(conf)
        except ImproperlyConfigured as error:
            add("E002", f"{where}: {error}")
            continue
        for number, key in (("E003", "TTL"), ("E004", "TIMEOUT")):
            if not _is_positive(conf.get(key, 1)):
                add(number, f"{where} {key} is {conf[key]!r}: give seconds above 0.")
        found.extend(cls.check(alias, conf))
    policy = settings.LOCK_POLICY
    for number, key, known in (
        ("E005", "BACKEND", settings.LOCKS),
        ("E006", "STRATEGY", WriteStrategy.values),
    ):
        if policy.get(key) not in known:
            value = policy.get(key)
            add(number, f"LOCK_POLICY {key} is {value!r}: give one of {', '.join(known)}.")
    return found


@register()
def check_single_flight(**kwargs: Any) -> list[CheckMessage]:
    """Check the keys and values of LOCK_SINGLE_FLIGHT."""
    given = getattr(settings, "LOCK_SINGLE_FLIGHT", {})
    conf = {**single_flight.DEFAULTS, **given}
    wrong = [f"has an unknown key {name!r}" for name in given if name not in single_flight.DEFAULTS]
    for name, known in (("CACHE", settings.CACHES), ("LOCK", {None, *settings.LOCKS})):
        if conf[name] not in known:
            wrong.append(f"{name} {conf[name]!r} is not in {name}S")
    for name in ("LOCK_TTL", "TIMEOUT"):
        if not _is_positive(conf[name]):
            wrong.append(f"{name} is {conf[name]!r}: give seconds above 0")
    return [Error(f"LOCK_SINGLE_FLIGHT {what}.", id="locking.E008") for what in wrong]
