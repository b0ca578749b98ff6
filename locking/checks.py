"""System checks of `settings.LOCKS`: a bad setting is refused before it guards anything."""

from __future__ import annotations

import math
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register
from django.core.exceptions import ImproperlyConfigured

from locking import rebuild
from locking.handler import KEYS, backend_class
from locking.models import Discipline


def _is_positive(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value < math.inf  # type: ignore[operator]


@register()
def check_locks(**kwargs: Any) -> list[CheckMessage]:
    """Unknown backends, impossible times, and whatever a backend's own `check` refuses."""
    found: list[CheckMessage] = []
    for alias, conf in settings.LOCKS.items():
        where = f"LOCKS[{alias!r}]"
        unknown = sorted(set(conf) - KEYS)
        if unknown:
            found.append(
                Error(f"{where} has unknown keys: {', '.join(unknown)}.", id="locking.E001")
            )
        try:
            cls = backend_class(conf)
        except ImproperlyConfigured as error:
            found.append(Error(f"{where}: {error}", id="locking.E002"))
            continue
        if cls.__module__.startswith("locking.recipes."):
            found.append(
                Error(f"{where} is a textbook recipe with a known flaw.", id="locking.E007")
            )
        if not _is_positive(conf.get("TTL", 1)):
            found.append(
                Error(f"{where} TTL is {conf['TTL']!r}, not seconds above 0.", id="locking.E003")
            )
        if not _is_positive(conf.get("TIMEOUT", 1)):
            found.append(
                Error(
                    f"{where} TIMEOUT is {conf['TIMEOUT']!r}, not seconds above 0.",
                    id="locking.E004",
                )
            )
        found.extend(cls.check(alias, conf))
    policy = settings.LOCK_POLICY
    if policy.get("BACKEND") not in settings.LOCKS:
        found.append(
            Error(
                f"LOCK_POLICY BACKEND {policy.get('BACKEND')!r} is not in LOCKS.", id="locking.E005"
            )
        )
    if policy.get("DISCIPLINE") not in Discipline.values:
        known = ", ".join(Discipline.values)
        found.append(
            Error(
                f"LOCK_POLICY DISCIPLINE {policy.get('DISCIPLINE')!r} is none of {known}.",
                id="locking.E006",
            )
        )
    return found


@register()
def check_single_flight(**kwargs: Any) -> list[CheckMessage]:
    """Unknown names and impossible times of `settings.LOCK_SINGLE_FLIGHT`."""
    given = getattr(settings, "LOCK_SINGLE_FLIGHT", {})
    conf = {**rebuild.DEFAULTS, **given}
    wrong = [f"has an unknown key {name!r}" for name in given if name not in rebuild.DEFAULTS]
    for name, known in (("CACHE", settings.CACHES), ("LOCK", {None, *settings.LOCKS})):
        if conf[name] not in known:
            wrong.append(f"{name} {conf[name]!r} is not in {name}S")
    for name in ("LOCK_TTL", "TIMEOUT"):
        if not _is_positive(conf[name]):
            wrong.append(f"{name} is {conf[name]!r}, not seconds above 0")
    return [Error(f"LOCK_SINGLE_FLIGHT {what}.", id="locking.E008") for what in wrong]
