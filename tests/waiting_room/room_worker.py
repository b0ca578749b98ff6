"""A process of the shop that joins rooms and draws lotteries."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from typing import Any

from devservers.faults.worker import WorkerProcess, send_to_parent


class RoomWorker(WorkerProcess):
    """The parent's side."""

    def __init__(self, database_url: str, redis_url: str | None = None) -> None:
        urls = {"DATABASE_URL": database_url, "REDIS_URL": redis_url or os.environ["REDIS_URL"]}
        super().__init__("tests.waiting_room.room_worker:RoomCommands", urls)


class RoomCommands:
    """The child's side."""

    def join(self, sale: int, customers: Iterable[int]) -> dict[str, Any]:
        """Join with all customers at once, in eight threads; return their positions."""
        from django.db import connections

        from shop.errors import ServiceUnavailable
        from tests.shop.making import fresh
        from waiting_room import service

        row = fresh(self._sale(sale))

        def join(customer: int) -> tuple[int, int | None]:
            try:
                place = service.join(sale=row, customer_id=customer)
                return customer, place.position
            except ServiceUnavailable:
                return customer, None
            finally:
                connections.close_all()

        with ThreadPoolExecutor(8) as pool:
            return {"places": list(pool.map(join, customers))}

    def join_until_refused(self, sale: int, announce: int) -> dict[str, Any]:
        """Join with customers 1, 2, ... until Redis is unavailable; return the places given.

        A line tells the parent when customer `announce` has a place.
        """
        from shop.errors import ServiceUnavailable
        from tests.shop.making import fresh
        from waiting_room import service

        row, numbers = fresh(self._sale(sale)), count(1)
        places: dict[int, int | None] = {}

        def join() -> None:
            with suppress(ServiceUnavailable):
                for customer in numbers:
                    place = service.join(sale=row, customer_id=customer)
                    places[customer] = place.position
                    if customer == announce:
                        send_to_parent({"joined": announce})

        threads = [threading.Thread(target=join) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"places": list(places.items())}

    def draw(self, room: int, cutoff: int, stop_at: str | None = None) -> dict[str, Any]:
        """Draw; with `stop_at`, wait at that fail point for a line of the parent."""
        import sys

        from locking import failpoints
        from waiting_room import lottery
        from waiting_room.models import Room

        def stop() -> None:
            send_to_parent({"reached": stop_at})
            sys.stdin.readline()

        if stop_at:
            failpoints.arm(stop_at, stop)
        return {"drawn": lottery.draw(room=Room.objects.get(pk=room), cutoff=cutoff)}

    def _sale(self, number: int) -> Any:
        from shop.models import Sale

        return Sale(pk=number)
