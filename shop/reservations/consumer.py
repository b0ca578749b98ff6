"""The loop that reads reservations and has them written. Any number of them share the work.

They are one consumer group: each entry goes to one of them, and what one took and did not settle
is claimed by another after CLAIM_AFTER.
"""

import logging
import os
import secrets
import socket
import threading
import time
from contextlib import suppress

from django.db import DatabaseError, close_old_connections, connections

from locking import LockError, LockUnavailable
from locking.backends.redis.connection import Connection
from shop.errors import Overloaded, ShopError
from shop.models import Sale
from shop.platform import heartbeat
from shop.reservations import order_writer as writing
from shop.reservations import store
from shop.reservations.reconciliation import load, sales_under_way

logger = logging.getLogger("shop")

BATCH = 500
LINGER = 0.1
"""Seconds between two batches: under load a transaction for many costs less than many."""
BLOCK = 0.4
"""Seconds that a read waits for an entry; so long a stop may take."""
LOOK = 1.0
"""Seconds between two looks for sales, and for what others left lying."""
CLAIM_AFTER = 3.0


class Consumer:
    """Reads and writes reservations until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._wire: Connection | None = None
        self._streams: dict[str, Sale] = {}
        self._look_at = 0.0

    def run(self) -> None:
        """Consume until stopped; an unavailable store is retried every BLOCK seconds."""
        while not self.stop.is_set():
            heartbeat.beat()
            try:
                self.round()
            except (LockError, DatabaseError, ShopError) as error:
                logger.warning("orders are not written at the moment: %r", error)
                self._close()
                self.stop.wait(BLOCK)
        with suppress(LockError):
            self._leave()
        self._close()

    def round(self) -> int:
        """Read what is there and write it; how many entries that were."""
        if time.monotonic() >= self._look_at:
            self._look()
        if not self._streams:
            self.stop.wait(BLOCK)
            return 0
        wire = self._wire = self._wire or store.open_wire()
        arguments = ["GROUP", store.GROUP, self.name, "COUNT", str(BATCH)]
        arguments += ["BLOCK", str(round(BLOCK * 1000)), "STREAMS", *self._streams]
        told = wire.command("XREADGROUP", *arguments, *[">"] * len(self._streams)) or {}
        count = 0
        for stream, raw in told.items():
            count += self._write(self._streams[stream], raw)
        if count:
            self.stop.wait(LINGER)
        return count

    def _look(self) -> None:
        """Learn which sales are under way, load those that are not, claim what others left."""
        self._look_at = time.monotonic() + LOOK
        close_old_connections()
        streams = {}
        for sale in sales_under_way():
            if store.left(sale=sale) is None:
                if sale.phase() == Sale.Phase.ENDED:
                    continue
                try:
                    load(sale=sale)
                except Overloaded as error:
                    logger.warning("sale %s is loaded later: %r", sale.slug, error)
                    continue
            streams[store.keys_of(sale.pk, sale.generation)[3]] = sale
        self._streams = streams
        for stream, sale in streams.items():
            self._claim(stream, sale)

    def _claim(self, stream: str, sale: Sale) -> None:
        wire = self._wire = self._wire or store.open_wire()
        idle = str(round(CLAIM_AFTER * 1000))
        claim = ["XAUTOCLAIM", stream, store.GROUP, self.name, idle, "0-0", "COUNT", str(BATCH)]
        raw = wire.command(*claim)[1]
        if raw:
            logger.warning("%d entries of sale %s were left by another", len(raw), sale.slug)
            self._write(sale, raw)

    def _write(self, sale: Sale, raw: list[list[str]]) -> int:
        """One sale's trouble is not another's: what cannot be written is claimed later."""
        entries = store.read(raw)
        try:
            if entries:
                writing.write(sale=sale, entries=entries)
        except (LockError, Overloaded) as error:
            logger.warning("%d entries of sale %s wait: %r", len(entries), sale.slug, error)
        return len(entries)

    def _leave(self) -> None:
        """Be forgotten by the group. What it did not settle must stay claimable."""
        wire = self._wire
        for stream in self._streams if wire else ():
            assert wire is not None
            if not wire.command("XPENDING", stream, store.GROUP, "-", "+", "1", self.name):
                wire.command("XGROUP", "DELCONSUMER", stream, store.GROUP, self.name)

    def _close(self) -> None:
        if self._wire is not None:
            with suppress(LockUnavailable, OSError):
                self._wire.close()
        self._wire = None
        self._look_at = 0.0
        connections.close_all()
