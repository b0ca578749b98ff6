"""Write the table of system checks in docs/library/reference.md from the messages they print.

DATABASE_URL=sqlite://:memory: .venv/bin/python -m tests.docs.check_page
"""

import re
from typing import Any
from unittest.mock import patch

from tools.library_reference import PAGE, anchor, plain  # isort: skip - sets Django up
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test.utils import override_settings

from devservers import Redis
from loadtest.bench.locks.properties import BACKENDS
from loadtest.kernel import marked
from locking import checks, policy

PART = "checks"
URLS = [f"redis://10.0.0.{number}/0" for number in (1, 2, 3)]
PLACES = {"redis": URLS[0], "redlock": URLS}
MISTAKES: list[tuple[str, dict[str, Any]]] = [
    ("none", {"TLL": 6}),
    ("none", {"BACKEND": "no.such.Backend"}),
    ("none", {"TTL": 0}),
    ("none", {"TIMEOUT": "2"}),
    ("redis", {"OPTIONS": ["PREFIX"]}),
    ("redis", {"OPTIONS": {"PREFX": "a:"}}),
    ("redis", {"OPTIONS": {"PREFIX": "a b"}}),
    ("redis", {"LOCATION": "redis:///0"}),
    ("redlock", {"LOCATION": URLS[0]}),
    ("redlock", {"LOCATION": URLS[:2]}),
    ("redlock", {"LOCATION": [*URLS[:2], URLS[0]]}),
    ("redlock", {"OPTIONS": {"NODE_TIMEOUT": 2}}),
    ("redlock", {"OPTIONS": {"RESTART_DELAY": 3}}),
    ("zookeeper", {"LOCATION": "a b"}),
    ("database", {"LOCATION": "absent"}),
    ("database", {"LOCATION": "other"}),
]
"""Entries of LOCKS that are refused without asking a server."""
UNFIT = {
    "a server with maxmemory-policy allkeys-lru": "CONFIG SET maxmemory 9mb",
    "a replica": "REPLICAOF 127.0.0.1 1",
    "a server that wants a password": "CONFIG SET requirepass secret",
}
"""Properties of a Redis server that are refused, and how it gets them."""
OTHER = {"ENGINE": "django.db.backends.oracle", "ATOMIC_REQUESTS": True}


def entry(alias: str, **given: Any) -> dict[str, Any]:
    return {
        "BACKEND": f"locking.backends.{BACKENDS[alias]}",
        "LOCATION": PLACES.get(alias),
        **given,
    }


def messages() -> dict[str, tuple[str, str]]:
    """Return by id what each check refuses, for example, and its message with its hint."""
    rows: dict[str, tuple[str, str]] = {}

    def provoke(refused: str, **given: Any) -> None:
        with override_settings(**given):
            if not given:
                del settings.LOCKS
            found = [*checks.check_locks(), *checks.check_single_flight()]
            found += [*checks.check_atomic_requests(), *checks.check_policy_row(["default"])]
            found += checks.check_jobs()
        for one in found:
            text = re.sub("NOAUTH.*", "NOAUTH ...", one.msg)  # the rest depends on the server
            rows.setdefault(str(one.id), (refused, plain(f"{text} {one.hint or ''}")))

    policy.stored_policy()
    good = {"redis": entry("redis")}
    policies = (
        ("`MODES` of `LOCK_POLICY` was removed", {"BACKEND": "redis"}),
        ("`LOCK_POLICY = {}`", {}),
        ("a `MODE` without `MODES` in `LOCK_POLICY`", {"BACKEND": "redis", "MODE": "fast"}),
    )
    for refused, first in policies:
        provoke(refused, LOCKS=good, LOCK_POLICY=first)
    provoke("`LOCK_SINGLE_FLIGHT = {'TTL': 2}`", LOCKS=good, LOCK_SINGLE_FLIGHT={"TTL": 2})
    provoke("`LOCKS = {}`", LOCKS={})
    provoke("the alias of the active backend was renamed", LOCKS={"renamed": entry("redis")})
    provoke("no `LOCKS`")
    provoke("no entry for the unfinished runs", LOCKS=good, CELERY_BEAT_SCHEDULE={})
    with patch.dict(connections.settings, other=OTHER):
        provoke("`ATOMIC_REQUESTS` in `DATABASES`", LOCKS=good)
        for alias, given in MISTAKES:
            provoke(f"`{alias}`: `{given}`", LOCKS={alias: entry(alias, **given)})
    with Redis(config=("--maxmemory-policy", "allkeys-lru")) as server:
        for refused, command in UNFIT.items():
            server.send(f"{command}\r\n".encode())
            provoke(
                f"`redis`: {refused}",
                LOCKS={"redis": entry("redis", LOCATION=server.url)},
            )
    down = [f"redis://127.0.0.1:{port}/0" for port in (1, 2, 3)]
    unset = {"redlock": entry("redlock", LOCATION=down)}
    provoke("`redlock`: no `RESTART_DELAY`", LOCKS=unset)
    return rows


def markdown() -> str:
    rows = [(anchor(name), *row) for name, row in sorted(messages().items())]
    return marked.table(["id", "refused, for example", "message"], rows)


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    marked.write(PAGE, PART, markdown())
