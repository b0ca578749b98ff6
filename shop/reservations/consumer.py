"""The loop that reads reservations from Redis and has their orders written.

All consumers form one consumer group: Redis delivers each entry to one of them. Another consumer
claims an entry that was delivered but not settled within CLAIM_AFTER.
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
from shop.reservations import order_writer, store
from shop.reservations.reconciliation import load, sales_under_way
from shop.reservations.store import Entry

logger = logging.getLogger("shop")

BATCH = 500
BATCH_WINDOW = 0.1
"""Seconds between two batches: one transaction for many entries costs less than many."""
BLOCK = 0.4
"""Seconds for which a read waits for an entry, and thus for which a stop may take."""
REFRESH_INTERVAL = 1.0
"""Seconds between two searches for sales and for abandoned entries."""
CLAIM_AFTER = 3.0
"""Seconds after which an entry that was not settled is claimed."""


class Consumer:
    """Reads and writes reservations until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self.name = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self._connection: Connection | None = None
        self._streams: dict[str, Sale] = {}
        self._refresh_at = 0.0

    def run(self) -> None:
        """Consume until stopped; an unavailable store is retried every BLOCK seconds."""
        while not self.stop.is_set():
            heartbeat.beat()
            try:
                self.round()
            except (LockError, DatabaseError, ShopError) as error:
                logger.warning("Writing orders failed, retrying: %r", error)
                self._close()
                self.stop.wait(BLOCK)
        self._close()

    def round(self) -> int:
        """Read the available entries and write them; return their number."""
        if time.monotonic() >= self._refresh_at:
            self._refresh()
        if not self._streams:
            self.stop.wait(BLOCK)
            return 0
        self._connection = self._connection or store.open_connection()
        reply = store.read_new(self._connection, self.name, list(self._streams), BATCH, BLOCK)
        count = sum(self._write(self._streams[stream], entries) for stream, entries in reply)
        if count:
            self.stop.wait(BATCH_WINDOW)
        return count

    def _refresh(self) -> None:
        """Find the current sales, load those that Redis lacks, and claim abandoned entries."""
        self._refresh_at = time.monotonic() + REFRESH_INTERVAL
        close_old_connections()
        streams = {}
        for sale in sales_under_way():
            if store.left(sale=sale) is None:
                if sale.phase() == Sale.Phase.ENDED:
                    continue
                try:
                    load(sale=sale)
                except Overloaded as error:
                    logger.warning("Loading sale %s failed, retrying: %r", sale.slug, error)
                    continue
            streams[store.keys_of(sale).orders] = sale
        self._streams = streams
        for sale in streams.values():
            if entries := store.claim(sale=sale, consumer=self.name, idle=CLAIM_AFTER, most=BATCH):
                logger.warning("Claimed %d entries of sale %s", len(entries), sale.slug)
                self._write(sale, entries)

    def _write(self, sale: Sale, entries: list[Entry]) -> int:
        """Write entries of one sale; after a failure they are claimed later."""
        try:
            if entries:
                order_writer.write(sale=sale, entries=entries)
        except (LockError, Overloaded) as error:
            logger.warning(
                "%d entries of sale %s failed, retrying: %r", len(entries), sale.slug, error
            )
        return len(entries)

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(LockUnavailable, OSError):
                self._connection.close()
        self._connection = None
        self._refresh_at = 0.0
        connections.close_all()
