"""Connections to the nodes of a Redis Cluster: each name belongs to a slot, each slot to a node."""

from __future__ import annotations

import time
from binascii import crc_hqx
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from redis.crc import key_slot

from locking.backends.redis.addresses import group_of
from locking.backends.redis.connection import Connection, Refused, is_timeout, may_repeat
from locking.backends.redis.pool import NOT_RESPONDING, ConnectionPool, redis_breaker
from locking.exceptions import LockUnavailable
from locking.fork import ForkSafeLock

T = TypeVar("T")

SLOTS = 16384
MIGRATION_DELAY = 0.02
"""Seconds after which a request is repeated while some of its keys move to another node."""


def tagged(name: str) -> str:
    """Return the hash tag of a name. "{}" at the start of a key would be no tag."""
    return f"\x01{name}" if name.startswith("}") else name


def slot_of(tag: str) -> int:
    """Return the slot of all keys that contain the tag in braces."""
    return key_slot(b"{%s}" % tag.encode())


@cache
def tags() -> dict[int, str]:
    """Return a short tag for each slot."""
    # crc_hqx is the checksum of `key_slot` in C, which takes a fifth of the time.
    known = map(str, reversed(range(110_000)))
    return {crc_hqx(tag.encode(), 0) % SLOTS: tag for tag in known}


class Cluster(ConnectionPool):
    """A pool for each node, and the map of the slots. The map is asked for again after an error."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self._options = options
        group = group_of(url)
        assert group is not None  # `url_problem` has checked it
        self._group = group
        self._pools: dict[str, ConnectionPool] = {}
        self._known = list(group.members)
        self._slots: list[str] = []
        tags()  # now, and not in each thread that acquires first while others hold a lease
        self._guard = ForkSafeLock()
        self.is_stale = True

    def of(self, name: str) -> _Slot:  # type: ignore[override]
        """Return the connections for a name."""
        return _Slot(self, slot_of(tagged(name)))

    def masters(self) -> list[ConnectionPool]:
        """Return the pools of all masters."""
        self.is_stale = True
        self._refresh()
        return [self.pool(url) for url in dict.fromkeys(self._slots) if url]

    def close(self) -> None:
        """Close the idle connections."""
        for pool in list(self._pools.values()):
            pool.close()

    def pool(self, url: str) -> ConnectionPool:
        """Return the pool of a node."""
        return self._pools.get(url) or self._pools.setdefault(
            url, ConnectionPool(url, **self._options)
        )

    def node(self, slot: int) -> ConnectionPool:
        """Return the pool of the node that serves the slot."""
        if self.is_stale:
            self._refresh()
        if url := self._slots[slot]:
            return self.pool(url)
        self.is_stale = True
        raise LockUnavailable(f"No node of the Redis Cluster serves slot {slot}.")

    def redirected(self, connection: Connection, target: str) -> str:
        """Return the URL of the node that a redirection of `connection` names."""
        host, _, port = target.rpartition(":")
        return self._group.server(host or str(urlsplit(connection.url).hostname), port)

    def moved(self, slot: int, url: str) -> None:
        """Note that another node serves the slot."""
        self._slots[slot] = url

    def _refresh(self) -> None:
        """Ask the nodes in turn for the map of the slots, except those that do not respond.

        An old map is used further if none replies: some of its nodes may still serve their slots.
        """
        limit = self.connect_timeout / 3
        until = time.monotonic() + 2 * self.connect_timeout
        with self._guard:
            failure, silent = LockUnavailable(NOT_RESPONDING), list[str]()
            for url in dict.fromkeys([*self._known, *self._group.members]):
                if not self.is_stale or time.monotonic() > until:
                    break
                if redis_breaker(url).is_open:
                    continue
                try:
                    # Without the breaker: requests have more time than this question.
                    node = Connection(url, timeout=limit, connect_timeout=limit)
                    reply = node.command("CLUSTER", "SLOTS")
                except LockUnavailable as error:
                    failure = error
                    if is_timeout(error):
                        silent.append(url)
                    continue
                slots, known = [""] * SLOTS, {url: True}
                for begin, end, *nodes in reply:
                    urls = [self.redirected(node, f"{one[0] or ''}:{one[1]}") for one in nodes]
                    slots[begin : end + 1] = urls[:1] * (end + 1 - begin)
                    known.update(dict.fromkeys(urls, True))
                self._slots, self._known, self.is_stale = slots, list(known), False
            if self.is_stale:
                for url in silent:  # then none replies: the next calls need not wait for that
                    redis_breaker(url).open()
            if not self._slots:
                raise LockUnavailable("No node of the Redis Cluster responds.") from failure


class _Slot:
    """The connections for the names of one slot, at whichever node serves it."""

    __slots__ = ("_cluster", "_slot")

    def __init__(self, cluster: Cluster, slot: int) -> None:
        self._cluster = cluster
        self._slot = slot

    def _at_node(self, call: Callable[[ConnectionPool], T]) -> T:
        try:
            return call(self._cluster.node(self._slot))
        except LockUnavailable:
            self._cluster.is_stale = True
            raise

    def get(self) -> Connection:
        return self._at_node(ConnectionPool.get)

    def open(self, channel: str = "") -> Connection:
        return self._at_node(lambda pool: pool.open(channel))

    def give(self, connection: Connection) -> None:
        self._cluster.pool(connection.url).give(connection)

    def retry_once(
        self, connection: Connection, request: Callable[..., T], *args: Any
    ) -> tuple[Connection, T]:
        """Call `request(connection, *args)`; see `ConnectionPool.retry_once`.

        Follows redirections for up to the timeout, and waits while the slot's keys are moved.
        """
        until = time.monotonic() + self._cluster.timeout
        is_first, is_asking = True, False
        while True:
            try:
                if is_asking:  # counts for the next command only, so that must not be NOSCRIPT
                    connection.command("ASKING")
                    script, keys, rest, *limits = args
                    packed = script.pack(keys, rest, whole=True)
                    return connection, connection.request(packed, *limits)
                return connection, request(connection, *args)
            except LockUnavailable as error:
                reply = str(error.__cause__) if isinstance(error, Refused) else ""
                kind, _, target = reply.partition(" ")
                is_asking = kind == "ASK" and request is Connection.run
                if kind == "TRYAGAIN" and time.monotonic() < until:
                    time.sleep(MIGRATION_DELAY)
                elif kind in ("MOVED", "ASK") and time.monotonic() < until:
                    node = self._cluster.redirected(connection, target.partition(" ")[2])
                    if kind == "MOVED":
                        self._cluster.moved(self._slot, node)
                else:
                    self._cluster.is_stale = True
                    if not (is_first and may_repeat(error)):
                        raise
                    is_first = False
                channel = connection.channel
            connection = self._cluster.pool(node).open(channel) if is_asking else self.open(channel)
            connection.redirected = is_first

    call = ConnectionPool.call


def open_pool(url: str, **options: Any) -> ConnectionPool:
    """Return the connections to the server, or the servers, of a URL."""
    is_cluster = getattr(group_of(url), "kind", "") == "cluster"
    return (Cluster if is_cluster else ConnectionPool)(url, **options)
