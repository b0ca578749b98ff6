"""The stores of a program: the clients' backends, and what resets them or ends a lease."""

import sqlite3
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connection as django_connection
from django.utils.module_loading import import_string

from locking.backends.base import Backend
from locking.backends.redis.connection import Connection, pack

BACKENDS, RECIPES = "locking.backends", "loadtest.recipes.redis_textbook"
REDIS = f"{BACKENDS}.redis.RedisBackend"
NAME = "item"
"""The name of the lock in all programs."""
TTL = 60.0
"""Seconds of a lease: longer than any run, so that only a fault ends one."""


class NoRepetition:
    """Takes the releases that a backend wants to repeat: a crashed client repeats none."""

    def add(self, release: object, ttl: float) -> None:
        """Do nothing."""


class World:
    """Stores without a lock, and the stock of a sale in SQLite."""

    backend = "locking.backends.none.NoneBackend"
    location: Any = ""

    @cached_property
    def sql(self) -> sqlite3.Connection:
        """A connection to the shop's database that no client uses."""
        path = django_connection.settings_dict["NAME"]
        sql = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        sql.execute("PRAGMA synchronous = OFF")
        return sql

    def make_backend(self) -> Backend:
        """Return the backend of one client, as another machine has it."""
        cls: type[Backend] = import_string(self.backend)
        made = cls("lock", location=self.location, ttl=TTL)
        vars(made)["pending_releases"] = NoRepetition()
        return made

    def close(self) -> None:
        """Close the connections."""
        if "sql" in vars(self):
            self.sql.close()

    def note_change(self) -> None:
        """Forget what the store replied: an operation has changed, or will change, its state."""

    def sync(self) -> None:
        """Return when the store has sent all messages to waiters."""

    def reset(self) -> None:
        """Empty the stores."""

    def is_held(self, place: int = 0) -> bool:
        """Return True if the store (or one of several) knows a holder whose lease can end."""
        return False

    def end_lease(self, place: int = 0) -> None:
        """End the holder's lease, as the store does when its time is over."""


class RedisWorld(World):
    """One or several Redis servers; the lock is one key on each."""

    def __init__(self, backend: str, urls: list[str], key: str) -> None:
        self.backend, self.location = backend, urls if len(urls) > 1 else urls[0]
        self._key = key
        self._controls = [Connection(url) for url in urls]
        self._held: dict[int, bool] = {}
        """Which servers know a holder, since the last operation: each is asked once."""

    def close(self) -> None:
        """Close the connections."""
        super().close()
        for control in self._controls:
            control.close()

    def ask(self, place: int, *words: str) -> Any:
        """Return the reply of one of the servers to a command."""
        return self._controls[place].request(pack(*words))

    def note_change(self) -> None:
        """Ask again when the state is needed."""
        self._held.clear()

    def sync(self) -> None:
        """Ask for the state: Redis writes to all clients before it reads the next command."""
        self.is_held()

    def reset(self) -> None:
        """Delete all keys."""
        self.note_change()
        for place in range(len(self._controls)):
            self.ask(place, "FLUSHALL")

    def is_held(self, place: int = 0) -> bool:
        """Return True if the key exists and has an end."""
        if place not in self._held:
            self._held[place] = int(self.ask(place, "PTTL", self._key)) > 0
        return self._held[place]

    def end_lease(self, place: int = 0) -> None:
        """Delete the key if it has an end."""
        if self.is_held(place):
            self.ask(place, "DEL", self._key)
            self.note_change()


class DatabaseWorld(World):
    """A table in SQLite."""

    backend = "locking.backends.database.DatabaseBackend"
    _table, _held = "locking_lockrow", "owner <> '' AND expires_at > 1"

    def reset(self) -> None:
        """Delete all rows."""
        self.sql.execute(f"DELETE FROM {self._table}")  # noqa: S608 - a constant

    def is_held(self, place: int = 0) -> bool:
        """Return True if a row has an owner and has not ended."""
        sql = f"SELECT 1 FROM {self._table} WHERE {self._held}"  # noqa: S608
        return self.sql.execute(sql).fetchone() is not None

    def end_lease(self, place: int = 0) -> None:
        """Let the rows, and the waiters' turns, end in 1970."""
        values = "expires_at = MIN(expires_at, 1), waiter_until = 0"
        self.sql.execute(f"UPDATE {self._table} SET {values}")  # noqa: S608


class RowRecipeWorld(DatabaseWorld):
    """The textbook's table, whose rows never end."""

    backend, _table = "loadtest.recipes.mysql_row.MySQLRowRecipe", "recipe_lock"

    def is_held(self, place: int = 0) -> bool:
        """Return False: no row ends."""
        return False

    def end_lease(self, place: int = 0) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Stores:
    """The servers for all programs."""

    redis: str
    masters: list[str]
    stock_id: int

    def open(self, name: str) -> World:
        """Return the stores of a program."""
        match name:
            case "none":
                return World()
            case "database":
                return DatabaseWorld()
            case "mysql_row":
                return RowRecipeWorld()
            case "redlock":
                return RedisWorld(
                    f"{BACKENDS}.redlock.RedLockBackend", self.masters, f"redlock:{NAME}"
                )
            case "redis":
                return RedisWorld(REDIS, [self.redis], f"lock:{{{NAME}}}")
        recipe = {"setnx": "Setnx", "setnx_expire": "SetnxExpire", "set_px": "SetExpire"}[name]
        key = f"textbook:{name.replace('_', '-')}:{NAME}"
        return RedisWorld(f"{RECIPES}.{recipe}Backend", [self.redis], key)
