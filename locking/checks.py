"""System checks that reject wrong lock settings at start-up."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router

from locking import single_flight
from locking.conf import backend_class, check_entry, lock_settings, policy_settings
from locking.models import LockPolicy, WriteStrategy
from locking.types import is_number


def _aliases() -> set[str]:
    """Return the aliases of LOCKS; none if LOCKS is wrong, which `check_locks` reports."""
    with suppress(ImproperlyConfigured):
        return set(lock_settings())
    return set()


@register()
def check_locks(**kwargs: Any) -> list[CheckMessage]:
    """Check the entries of LOCKS, their stores, and LOCK_POLICY."""
    try:
        entries = lock_settings()
    except ImproperlyConfigured as error:
        return [Error(str(error), id="locking.E000")]
    found: list[CheckMessage] = []
    if not hasattr(settings, "LOCKS"):
        text = "LOCKS is not set: locks exclude each other within one process only."
        found.append(Warning(text, hint="Name a store in LOCKS.", id="locking.W001"))
    for alias, conf in entries.items():
        mistakes = check_entry(alias, conf)
        found += mistakes or backend_class(conf).check_store(alias, conf)
    policy = policy_settings()
    for number, key, known in (
        ("E005", "BACKEND", entries),
        ("E006", "STRATEGY", WriteStrategy.values),
    ):
        if policy.get(key) not in known:
            text = f"LOCK_POLICY {key} is {policy.get(key)!r}: give one of {', '.join(known)}."
            found.append(Error(text, id=f"locking.{number}"))
    return found


@register()
def check_atomic_requests(**kwargs: Any) -> list[CheckMessage]:
    """Warn about ATOMIC_REQUESTS: a view's lock ends before its transaction does."""
    return [
        Warning(
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS: a lock of a view is released before the "
            "view's transaction is committed, and the next holder reads old data.",
            hint='Decorate such views with non_atomic_requests, or use lock(..., until="commit").',
            id="locking.W002",
        )
        for alias, database in connections.settings.items()
        if database.get("ATOMIC_REQUESTS")
    ]


@register(Tags.database)
def check_policy_row(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that LOCKS has the backend that the policy in the database names.

    LOCK_POLICY is only the first policy: an alias that is renamed later stays in the row.
    """
    model = LockPolicy
    aliases = _aliases()
    if router.db_for_write(model) not in (databases or ()) or not aliases:
        return []
    try:
        row = model.objects.using(router.db_for_write(model)).filter(pk=1).first()
    except DatabaseError:
        return []  # not migrated yet, or unavailable
    if row is None or row.backend in aliases:
        return []
    text = f"The active lock backend is {row.backend!r}, which LOCKS does not have."
    hint = f"Add {row.backend!r} to LOCKS, or run `manage.py lock_policy switch ALIAS --force`."
    return [Error(text, hint=hint, id="locking.E007")]


@register()
def check_single_flight(**kwargs: Any) -> list[CheckMessage]:
    """Check the keys and values of LOCK_SINGLE_FLIGHT."""
    given = getattr(settings, "LOCK_SINGLE_FLIGHT", {})
    if not (aliases := _aliases()):
        return []
    conf = {**single_flight.DEFAULTS, **given}
    wrong = [f"has an unknown key {name!r}" for name in given if name not in single_flight.DEFAULTS]
    for name, known in (("CACHE", settings.CACHES), ("LOCK", {None, *aliases})):
        if conf[name] not in known:
            wrong.append(f"{name} {conf[name]!r} is not in {name}S")
    for name in ("LOCK_TTL", "TIMEOUT"):
        if not (is_number(conf[name]) and 0 < conf[name] < math.inf):
            wrong.append(f"{name} is {conf[name]!r}: give seconds above 0")
    return [Error(f"LOCK_SINGLE_FLIGHT {what}.", id="locking.E008") for what in wrong]
