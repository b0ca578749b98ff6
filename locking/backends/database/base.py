"""The base class of all backends that keep locks in one of DATABASES."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar

from django.core.checks import CheckMessage, Error
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

from locking.backends.base import Backend
from locking.backends.database.pool import SessionPool
from locking.backends.database.session import UserLockSession
from locking.claims import Claim


class DatabaseLocks(Backend):
    """Locks in a database; LOCATION is its alias in DATABASES."""

    vendors: ClassVar[tuple[str, ...]] = ("sqlite", "mysql", "postgresql")
    """What Django calls the databases that are supported."""

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.pool = SessionPool(str(self.location))
        self.pinned: dict[str, UserLockSession] = {}
        """By owner: the session that belongs to a lock held by this process."""

    def pin(self, session: UserLockSession, claim: Claim) -> None:
        """Keep a session for the holder of a lock instead of returning it to the pool."""
        session.claim = claim
        self.pinned[claim.owner] = session

    def probe(self) -> None:
        """Ask the server."""
        self.pool.call(lambda session: session.row("SELECT 1"))

    def close(self) -> None:
        """Close all connections, those of held locks included."""
        self.pool.close()
        while self.pinned:
            with suppress(KeyError):  # its holder releases the lock at this moment
                self.pinned.popitem()[1].close()

    def reset_after_fork(self) -> None:
        """Abandon the parent's sessions before the last reference to them is dropped."""
        self.pool.reset_after_fork()
        self.pinned = {}

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check that LOCATION is a database of one of the supported engines."""
        wrong = super().check(alias, conf)
        location = conf.get("LOCATION") or DEFAULT_DB_ALIAS
        if not isinstance(location, str) or location not in connections.settings:
            text = f"LOCKS[{alias!r}] LOCATION {location!r:.60} is not an alias in DATABASES."
            return [*wrong, Error(text, id="locking.E051")]
        engine = str(connections.settings[location]["ENGINE"])
        try:
            vendor = str(connections[location].vendor)  # also of GeoDjango's engines and others
        except (ImproperlyConfigured, ImportError):  # its driver is missing
            vendor = engine.rpartition(".")[2]
        if not vendor.startswith(cls.vendors):
            needs = f"LOCKS[{alias!r}] needs {' or '.join(cls.vendors)}"
            text = f"{needs}, but DATABASES[{location!r}] is {engine}."
            hint = "Libraries for other databases: docs/library/choose-a-lock.md."
            wrong.append(Error(text, hint=hint, id="locking.E052"))
        return wrong
