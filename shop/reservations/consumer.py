"""The loop that looks for reservations in Redis and has their orders written.

A sale's lock shares the work: the consumer that holds it writes the oldest entries and removes them
before it releases the lock. Entries of a consumer that died are the oldest ones of the next.
"""

import logging
import threading
import time

from django.db import Error, close_old_connections, connections

from locking import LockError
from shop.errors import Overloaded, ShopError
from shop.models import Sale
from shop.platform import metrics
from shop.reservations import order_writer, store
from shop.reservations.reconciliation import sales_under_way

logger = logging.getLogger("shop")

BATCH_WINDOW = 0.1
"""Seconds between two batches: one transaction for many entries costs less than many."""
PAUSE = 0.4
"""Seconds after a failure, and between two searches for sales if there is none."""
REFRESH_INTERVAL = 1.0
"""Seconds between two searches for sales."""


class Consumer:
    """Writes the orders of reservations until `stop` is set."""

    def __init__(self, stop: threading.Event) -> None:
        self.stop = stop
        self._sales: list[Sale] = []
        self._refresh_at = 0.0

    def run(self) -> None:
        """Consume until stopped; an unavailable store is retried after PAUSE seconds."""
        while not self.stop.is_set():
            metrics.beat()
            try:
                self.round()
            except (LockError, Error, ShopError) as error:
                logger.warning("Writing orders failed, retrying: %r", error)
                self._refresh_at = 0.0
                connections.close_all()
                self.stop.wait(PAUSE)
        connections.close_all()

    def round(self) -> int:
        """Write a batch of each sale that has entries, pause, and return the number of entries."""
        if time.monotonic() >= self._refresh_at:
            self._refresh_at = time.monotonic() + REFRESH_INTERVAL
            close_old_connections()
            self._sales = list(sales_under_way())
        counts = [self._write(sale) for sale in self._sales]
        self.stop.wait(BATCH_WINDOW if counts and None not in counts else PAUSE)
        return sum(filter(None, counts))

    def _write(self, sale: Sale) -> int | None:
        """Write a batch of a sale; return the number of entries, or None after a failure."""
        metrics.beat()  # the sales before it may have waited for their locks
        try:
            return order_writer.write(sale=sale) if store.backlog(sale=sale) else 0
        except (LockError, Overloaded) as error:
            logger.warning("Entries of sale %s were not written, retrying: %r", sale.slug, error)
            return None
