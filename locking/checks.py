"""System checks of `settings.LOCKS`: a bad setting is refused before it guards anything."""

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
    """Unknown backends, impossible times, and whatever a backend's own `check` refuses."""
    found: list[CheckMessage] = []

    def refuse(number: str, why: str) -> None:
        found.append(Error(why, id=f"locking.{number}"))

    for alias, conf in settings.LOCKS.items():
        where = f"LOCKS[{alias!r}]"
        if unknown := sorted(set(conf) - KEYS):
            refuse("E001", f"{where} has unknown keys: {', '.join(unknown)}.")
        try:
            cls = backend_class(conf)
        except ImproperlyConfigured as error:
            refuse("E002", f"{where}: {error}")
            continue
        for number, key in (("E003", "TTL"), ("E004", "TIMEOUT")):
            if not _is_positive(conf.get(key, 1)):
                refuse(number, f"{where} {key} is {conf[key]!r}, not seconds above 0.")
        found.extend(cls.check(alias, conf))
    policy = settings.LOCK_POLICY
    for number, key, known in (
        ("E005", "BACKEND", settings.LOCKS),
        ("E006", "STRATEGY", WriteStrategy.values),
    ):
        if policy.get(key) not in known:
            refuse(number, f"LOCK_POLICY {key} {policy.get(key)!r} is none of {', '.join(known)}.")
    return found


@register()
def check_single_flight(**kwargs: Any) -> list[CheckMessage]:
    """Unknown names and impossible times of `settings.LOCK_SINGLE_FLIGHT`."""
    given = getattr(settings, "LOCK_SINGLE_FLIGHT", {})
    conf = {**single_flight.DEFAULTS, **given}
    wrong = [f"has an unknown key {name!r}" for name in given if name not in single_flight.DEFAULTS]
    for name, known in (("CACHE", settings.CACHES), ("LOCK", {None, *settings.LOCKS})):
        if conf[name] not in known:
            wrong.append(f"{name} {conf[name]!r} is not in {name}S")
    for name in ("LOCK_TTL", "TIMEOUT"):
        if not _is_positive(conf[name]):
            wrong.append(f"{name} is {conf[name]!r}, not seconds above 0")
    return [Error(f"LOCK_SINGLE_FLIGHT {what}.", id="locking.E008") for what in wrong]
