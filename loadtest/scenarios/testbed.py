"""Where a scenario plays: private servers, a shop, processes that buy in it, and their record."""

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

import environ
from django.conf import settings
from django.db import connections
from django.utils import timezone

from devservers import MariaDb, Redis, ZooKeeper, start_all, stop_all
from devservers.temporary import temporary_directory
from inventory.models import Product
from loadtest.faults.injectors import Fault
from loadtest.faults.waiting import FaultFailed
from loadtest.history.checker import Promise, check
from loadtest.history.recorder import Event, Recorder, history
from loadtest.load.actor import Actor, add_database
from locking import locks, policy
from locking.models import LockPolicy, LockRow
from shop.models import Sale, User
from shop.sales.queries import create_sale

TTL = 1.0
"""Seconds of a lease, and of a ZooKeeper session, which cannot be shorter here."""
BACKENDS = "locking.backends"
REDIS = f"{BACKENDS}.redis.RedisBackend"
DATABASE = f"{BACKENDS}.database.DatabaseBackend"
REDLOCK = f"{BACKENDS}.redlock.RedLockBackend"
ZOOKEEPER = f"{BACKENDS}.zookeeper.ZooKeeperBackend"


class Crew:
    """Servers and processes that one scenario leaves for the next; all end with it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._idle: list[Actor] = []

    def close(self) -> None:
        """End them all."""
        for actor in self._idle:
            actor.kill()
        self._stack.close()

    @cached_property
    def redis(self) -> Redis:
        """One for every scenario that leaves it as it was."""
        return self._stack.enter_context(Redis())

    @cached_property
    def zookeeper(self) -> ZooKeeper:
        """One node: enough where no server fails."""
        return self._stack.enter_context(ZooKeeper(nodes=1))

    @cached_property
    def mariadb(self) -> MariaDb:
        """Beside the shop's own database."""
        return self._stack.enter_context(MariaDb())

    def take(self) -> Actor:
        """A process nobody uses."""
        return self._idle.pop() if self._idle else Actor()

    def give(self, actor: Actor) -> None:
        """One that is at work, or dead, is of no use to the next."""
        if actor.is_alive and not actor.is_busy:
            self._idle.append(actor)
        else:
            actor.kill()


@dataclass(frozen=True)
class Played:
    """One half of a scenario, as it went."""

    facts: dict[str, Any]
    events: list[Event]
    seconds: float


class Stage:
    """One half of a scenario: its folder, its locks, its actors."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self._stack = ExitStack()
        self.folder = temporary_directory("scene")
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self.recorder = Recorder(self.folder, "lab")
        self._stack.callback(self.recorder.close)
        self.began = time.monotonic()
        self.locks: dict[str, dict[str, Any]] = {}
        self.databases: dict[str, Any] = {}
        self.actors: list[Actor] = []

    def close(self) -> None:
        locks.close()
        for actor in self.actors:
            self.crew.give(actor)
        self._stack.close()

    def enter(self, server: Any) -> Any:
        """Start a server of this scenario's own, which it may hurt."""
        return self._stack.enter_context(server)

    def five(self, *servers: Redis) -> list[Redis]:
        """Five masters of its own."""
        made = list(servers) or [Redis() for _ in range(5)]
        start_all(made)
        self._stack.callback(stop_all, made)
        return made

    # --- locks and shop ---

    def lock(self, alias: str, backend: str, location: object, **conf: Any) -> None:
        """An entry of LOCKS, here and in the actors that come on stage afterwards."""
        entry = {"BACKEND": backend, "LOCATION": location, "TTL": TTL, **conf}
        settings.LOCKS[alias] = self.locks[alias] = entry

    def redis_lock(self, url: str = "", **conf: Any) -> None:
        """The entry `redis`."""
        self.lock("redis", REDIS, url or self.crew.redis.url, **conf)

    def database(self, server: MariaDb) -> str:
        """An alias in DATABASES, here and in the actors, with the table of the database backend."""
        entry = environ.Env.db_url_config(server.url)
        self.databases["beside"] = entry
        if add_database("beside", entry):
            with connections["beside"].schema_editor() as editor:
                editor.create_model(LockRow)
        return "beside"

    def guard(self, backend: str, strategy: str) -> None:
        """Put a policy in force at once: nobody buys yet."""
        row = {"backend": backend, "strategy": strategy, "state": LockPolicy.State.STEADY}
        LockPolicy.objects.update_or_create(pk=1, defaults={**row, "epoch": 1})
        policy.invalidate()

    def sale(self, stock: int = 1) -> Sale:
        """Open now."""
        slug = f"scene-{time.monotonic_ns()}"
        now = timezone.now()
        return create_sale(
            product=Product.objects.create(slug=slug, name="Phone X", price=Decimal(999)),
            slug=slug,
            price=Decimal(999),
            quantity=stock,
            opens_at=now - timedelta(hours=1),
            closes_at=now + timedelta(hours=1),
        )

    def customer(self) -> int:
        """Somebody who may buy."""
        return User.objects.create(username=f"scene-{time.monotonic_ns()}").pk

    # --- who and what happens ---

    def actor(self, name: str, *, timeout: float = 2.0) -> Actor:
        """A process on stage; `timeout` is how long its purchases wait for the lock."""
        actor = self.crew.take()
        self.actors.append(actor)
        actor.open(self.folder, name, self.locks, timeout, self.databases)
        return actor

    def strike(self, fault: Fault) -> None:
        """Let it happen; FaultFailed when it did not."""
        self.recorder.note("fault", "start", what=fault.what, lane=fault.lane)
        fault.inject()
        if not fault.injected:
            raise FaultFailed(f"{fault.lane} {fault.what}: it did not fire")

    def heal(self, fault: Fault) -> None:
        """End it."""
        fault.recover()
        self.recorder.note("fault", "heal", what=fault.what, lane=fault.lane)

    def kill(self, actor: Actor, name: str) -> None:
        """SIGKILL of an actor, as in a crash."""
        self.recorder.note("fault", "start", what="killed", lane=name, victim=name)
        actor.kill()

    def mark(self, lane: str, what: str) -> None:
        """Something to see at this moment."""
        self.recorder.note("mark", lane=lane, what=what)

    def kept(self, actor: str) -> None:
        """The store remembers a lock of an actor that never heard of its grant."""
        self.recorder.note("kept", lane=actor)

    def gone(self, actor: str) -> None:
        """The store has forgotten what the actor holds, whatever its holder believes."""
        self.recorder.note("gone", lane=actor)

    def until_passed(self, since: float, seconds: float) -> None:
        """Let time pass until so long after `since`."""
        time.sleep(max(0.0, since + seconds - time.monotonic()))

    def played(self, facts: dict[str, Any]) -> Played:
        """The half, with what the checker saw of it."""
        events = history(self.folder)
        seen = check(events, None, Promise(exclusive=False, fencing=False)).facts
        names = ("overlaps", "overlap_seconds", "lease_overlaps")
        facts = {name: seen[name] for name in names} | facts
        return Played(facts, events, round(time.monotonic() - self.began, 2))
