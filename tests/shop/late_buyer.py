"""A process that buys; a fault holds it between its read of the stock and its write."""

import copy
from pathlib import Path
from typing import Any

from django.conf import settings

from loadtest.load.shop_worker import ShopWorker
from shop.models import Sale

TTL = 1.0
"""Seconds of its leases and of its ZooKeeper session, which cannot be shorter here."""


class LateBuyer(ShopWorker):
    """The lab's actor, with all the locks of the settings."""

    def __init__(self, database_url: str, folder: Path) -> None:
        super().__init__({"DATABASE_URL": database_url})
        self.folder = folder
        self._locks = copy.deepcopy(settings.LOCKS)
        for conf in self._locks.values():
            conf["TTL"] = TTL
        self._locks["zookeeper"]["OPTIONS"] = {"SESSION_TIMEOUT": TTL}
        self.locks()

    def buy(self, sale: Sale, customer: int, *, fault: str = "") -> None:
        """Buy a unit; try again for some seconds while the shop is overloaded."""
        self.start("buy", sale=sale.pk, user=customer, fault=fault, patience=30.0)

    def locks(self, **changes: dict[str, Any]) -> None:
        for alias, change in changes.items():
            self._locks[alias].update(change)
        self.open(self.folder, f"buyer {self.pid}", self._locks, timeout=2.0)
