"""The stores of a program: the clients' backends, and what resets them or ends a lease."""

import sqlite3
from functools import cached_property
from types import SimpleNamespace
from typing import Any, NamedTuple

from django.db import connection as django_connection
from django.utils.module_loading import import_string

from locking.backends.base import Backend
from locking.backends.redis.connection import Connection, pack

REDIS = "locking.backends.redis.RedisBackend"
RECIPES = "loadtest.recipes.redis_textbook"
NAME = "item"
"""The name of the lock in all programs."""
TTL = 60.0
"""Seconds of a lease: longer than any run, so that only a fault ends one."""
NO_REPETITION = SimpleNamespace(add=lambda release, ttl: None)
"""The releases that a backend wants to repeat: a crashed client repeats none."""


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

    def reset_stock(self, stock_id: int, units: int) -> None:
        """Return all units to a stock row, and forget its fence."""
        values = "quantity = ?, fence_epoch = 0, fence_token = 0"
        self.sql.execute(f"UPDATE inventory_stock SET {values} WHERE id = ?", (units, stock_id))  # noqa: S608
        sold = "DELETE FROM inventory_stockmovement WHERE stock_id = ? AND delta < 0"
        self.sql.execute(sold, (stock_id,))

    def read_stock(self, stock_id: int) -> tuple[int, int]:
        """Return the units that are left, and those that the ledger shows as sold."""
        sold = "SELECT COALESCE(-SUM(delta), 0) FROM inventory_stockmovement"
        sold += " WHERE stock_id = s.id AND delta < 0"
        sql = f"SELECT quantity, ({sold}) FROM inventory_stock s WHERE id = ?"  # noqa: S608
        found: tuple[int, int] = self.sql.execute(sql, (stock_id,)).fetchone()
        return found

    def make_backend(self) -> Backend:
        """Return the backend of one client, as another machine has it."""
        cls: type[Backend] = import_string(self.backend)
        made = cls("lock", location=self.location, ttl=TTL)
        vars(made)["pending_releases"] = NO_REPETITION
        return made

    def close(self) -> None:
        """Close the connections."""
        if "sql" in vars(self):
            self.sql.close()

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

    def close(self) -> None:
        super().close()
        for control in self._controls:
            control.close()

    def ask(self, place: int, *words: str) -> Any:
        """Return the reply of one of the servers to a command."""
        return self._controls[place].request(pack(*words))

    def sync(self) -> None:
        self.is_held()  # Redis writes to all clients before it reads the next command

    def reset(self) -> None:
        for place in range(len(self._controls)):
            self.ask(place, "FLUSHALL")

    def is_held(self, place: int = 0) -> bool:
        return int(self.ask(place, "PTTL", self._key)) > 0

    def end_lease(self, place: int = 0) -> None:
        if self.is_held(place):
            self.ask(place, "DEL", self._key)


class DatabaseWorld(World):
    """A table in SQLite."""

    backend = "locking.backends.database.DatabaseBackend"

    def reset(self) -> None:
        self.sql.execute("DELETE FROM locking_lockrow")

    def is_held(self, place: int = 0) -> bool:
        sql = "SELECT 1 FROM locking_lockrow WHERE owner <> '' AND expires_at > 1"
        return self.sql.execute(sql).fetchone() is not None

    def end_lease(self, place: int = 0) -> None:
        ended = "expires_at = MIN(expires_at, 1), waiter_until = 0"  # waiters' turns end, too
        self.sql.execute(f"UPDATE locking_lockrow SET {ended}")  # noqa: S608


class RowRecipeWorld(World):
    """The textbook's table, whose rows never end."""

    backend = "loadtest.recipes.mysql_row.MySQLRowRecipe"

    def reset(self) -> None:
        self.sql.execute("DELETE FROM recipe_lock")


LOCAL = {"none": World, "database": DatabaseWorld, "mysql_row": RowRecipeWorld}
ON_REDIS = {
    "redis": (REDIS, f"lock:{{{NAME}}}"),
    "redlock": ("locking.backends.redlock.RedLockBackend", f"redlock:{NAME}"),
    "setnx": (f"{RECIPES}.SetnxBackend", f"textbook:setnx:{NAME}"),
    "setnx_expire": (f"{RECIPES}.SetnxExpireBackend", f"textbook:setnx-expire:{NAME}"),
    "set_px": (f"{RECIPES}.SetExpireBackend", f"textbook:set-px:{NAME}"),
}
"""By store: the backend, and the key of the lock."""


class Stores(NamedTuple):
    """The servers for all programs."""

    redis: str
    masters: list[str]
    stock_id: int

    def open(self, name: str) -> World:
        """Return the stores of a program."""
        if name in LOCAL:
            return LOCAL[name]()
        backend, key = ON_REDIS[name]
        return RedisWorld(backend, self.masters if name == "redlock" else [self.redis], key)
