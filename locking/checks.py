"""System checks that refuse wrong lock settings at start-up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections

from locking import single_flight
from locking.conf import (
    POLICY_KEYS,
    backend_class,
    check_entry,
    lock_settings,
    modes,
    policy_settings,
)
from locking.names import is_number
from locking.policy.active import database_alias, policy_rows


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
        hint = "Name a store in LOCKS (docs/library/choose-a-lock.md)."
        found.append(Warning(text, hint=hint, id="locking.W001"))
    for alias, conf in entries.items():
        mistakes = check_entry(alias, conf)
        found += mistakes or backend_class(conf).check_store(alias, conf)
    return [*found, *_check_policy(entries)]


def _check_policy(entries: Mapping[str, Any]) -> Iterator[CheckMessage]:
    try:
        policy = policy_settings()
    except ImproperlyConfigured as error:
        yield Error(str(error), id="locking.E005")
        return
    if extra := sorted(set(policy) - POLICY_KEYS):
        yield Error(f"LOCK_POLICY has unknown keys: {', '.join(extra)}.", id="locking.E005")
    try:
        known = modes().values
    except ImproperlyConfigured as error:
        yield Error(str(error), id="locking.E006")
        return
    if not known and "MODE" in policy:
        yield Error("LOCK_POLICY has a MODE but no MODES.", id="locking.E006")
    for number, key, choices in (("E005", "BACKEND", list(entries)), ("E006", "MODE", known)):
        if choices and policy.get(key) not in choices:
            text = f"LOCK_POLICY {key} is {policy.get(key)!r}: give one of {', '.join(choices)}."
            yield Error(text, id=f"locking.{number}")


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


RESEND = "locking.jobs.tasks.resend_unfinished_runs"


@register()
def check_jobs(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the scheduler of the runs is used, but no schedule repeats those that failed."""
    schedule = getattr(settings, "CELERY_BEAT_SCHEDULE", {}).values()
    is_ours = getattr(settings, "CELERY_BEAT_SCHEDULER", "") == "locking.jobs.beat:Scheduler"
    if not is_ours or RESEND in [entry.get("task") for entry in schedule]:
        return []
    text = f"CELERY_BEAT_SCHEDULE has no {RESEND}: no run_once task is tried again after an error."
    hint = "Schedule it every few seconds, or silence this check if staff did so in the admin."
    return [Warning(text, hint=hint, id="locking.W003")]


@register(Tags.database)
def check_policy_row(databases: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Check that the settings have the backend and the mode that the database names.

    LOCK_POLICY is only the first policy: a name that is changed later stays in the row.
    """
    if database_alias() not in (databases or ()):
        return []
    try:
        aliases, known, row = lock_settings(), modes().values, policy_rows().first()
    except (DatabaseError, ImproperlyConfigured):
        return []  # not migrated yet, or unavailable; or reported by `check_locks`
    found: list[CheckMessage] = []
    if row and row.backend not in aliases:
        text = f"The active lock backend is {row.backend!r}, which LOCKS does not have."
        hint = f"Add {row.backend!r} to LOCKS, or run `manage.py lock_policy switch ALIAS --force`."
        found.append(Error(text, hint=hint, id="locking.E007"))
    if row and row.mode not in (known or [""]):
        text = f"The active mode is {row.mode!r}, which LOCK_POLICY MODES does not have."
        command = f"lock_policy switch {row.backend}" + " --mode MODE" * bool(known)
        found.append(Error(text, hint=f"Run `manage.py {command}`.", id="locking.E009"))
    return found


@register()
def check_single_flight(**kwargs: Any) -> list[CheckMessage]:
    """Check the keys and values of LOCK_SINGLE_FLIGHT."""
    given = getattr(settings, "LOCK_SINGLE_FLIGHT", {})
    try:
        aliases = lock_settings()
    except ImproperlyConfigured:
        return []  # reported by `check_locks`
    if not isinstance(given, Mapping):
        text = f"LOCK_SINGLE_FLIGHT is {given!r:.60}: give a dict."
        return [Error(text, id="locking.E008")]
    conf = {**single_flight.DEFAULTS, **given}
    wrong = [f"has an unknown key {name!r}" for name in given if name not in single_flight.DEFAULTS]
    for name, known in (("CACHE", settings.CACHES), ("LOCK", {None, *aliases})):
        if conf[name] not in known:
            wrong.append(f"{name} {conf[name]!r} is not in {name}S")
    for name in ("LOCK_TTL", "TIMEOUT"):
        if not (is_number(conf[name]) and 0 < conf[name] < math.inf):
            wrong.append(f"{name} is {conf[name]!r}: give seconds above 0")
    return [Error(f"LOCK_SINGLE_FLIGHT {what}.", id="locking.E008") for what in wrong]
