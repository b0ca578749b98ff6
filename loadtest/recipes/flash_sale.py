"""Textbook flash sales: Redis counts the units, and a row is the order. For the lab only.

    FS1  DECR, then the check        a refused buyer keeps a unit from the others
    FS2  DECR, then RPUSH; LPOP      a crash between two commands loses a unit or an order
    FS3  a sold-out flag             no one removes it when a unit comes back
    FS4  payments are booked blindly also on an order that has expired
    FS6  staff save a number         it overwrites what was sold since they read it

FS5, a lock with an expiry around the payment, is `redis_textbook.SetExpireBackend`. The shop's own
services, which `loadtest.load.own_sale` calls for the same requests, have none of these flaws.
"""

import time
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar

from django.conf import settings
from django.utils import timezone
from django.utils.translation import gettext_noop
from redis import Redis

from loadtest.kernel.history import Recorder
from locking.failpoints import reach
from shop.models import Order, Sale

PACE = 0.12
"""Seconds before each step, so that the chart shows them apart."""
RESERVED, POPPED = "flash_sale.reserved", "flash_sale.popped"
"""Fail points: after a unit was taken in Redis; after a message was taken from the queue."""
LANES = {"stock": "Redis", "queue": gettext_noop("queue"), "flag": gettext_noop("sold-out flag")}
"""The lane of each key."""
HERE = "loadtest/recipes/flash_sale.py"
Place = Sequence[str]
"""A file, and a part of one of its lines."""


@cache
def _client() -> Any:  # redis-py has no type for `execute_command`
    return Redis.from_url(settings.REDIS_URL, decode_responses=True)


class RecordedSale:
    """A sale as one of its actors uses it; each step is recorded in the lane of a store."""

    refusals: ClassVar[dict[str, Place]] = {}
    """The line that refuses a buyer, by what the buyer is told."""

    def __init__(self, recorder: Recorder, sale: int, user: int) -> None:
        self.recorder, self.user = recorder, user
        self.sale = Sale.objects.select_related("stock", "product").get(pk=sale)
        self.orders = Order.objects.filter(sale=self.sale)

    def step(self, lane: str, what: str, value: object, code: Place = ()) -> None:
        """Record a step; `what` may show the value, and `code` is the line that takes it."""
        self.recorder.note("step", lane=lane, what=what, value=value, code=code)

    def show_orders(self, code: Place = ()) -> None:
        """Record how many orders hold a unit after a line."""
        found = [*self.orders.filter(status__in=Order.LIVE).values_list("status", flat=True)]
        is_paid = found and Order.Status.PENDING not in found
        what = gettext_noop("%(value)s sold") if is_paid else gettext_noop("%(value)s held")
        self.step("database", what, len(found), code)


class Textbook(RecordedSale):
    """The common part of the recipes, which has no flaw of its own."""

    def redis(self, command: str, key: str, *args: object) -> Any:
        """Send a command that concerns a key of this sale, record it, and return the reply."""
        time.sleep(PACE)
        start = f"textbook:{self.sale.pk}:"
        _client().set(f"{start}stock", self.sale.left, nx=True)
        reply = _client().execute_command(command, start + key, *args)
        what = " ".join([command, *map(str, args), "→ %(value)s"])
        told = gettext_noop("empty") if reply is None else "OK" if reply is True else reply
        self.step(LANES[key], what, told, (HERE, f'redis("{command}", "{key}"'))
        return reply

    def left(self) -> int:
        """Return the units that Redis offers."""
        return int(_client().get(f"textbook:{self.sale.pk}:stock") or 0)

    def take(self) -> bool:
        """Take a unit; return False if there is none."""
        if self.redis("DECR", "stock") >= 0:
            return True
        self.redis("INCR", "stock")
        return False

    def order(self, user: int = 0, status: str = Order.Status.PENDING) -> str:
        """Write an order of one unit, by default one of this actor that is not paid."""
        time.sleep(PACE)
        pay_by = timezone.now() + timedelta(seconds=settings.PAY_WITHIN_SECONDS)
        fields = {"customer_id": user or self.user, "key": str(time.monotonic_ns())}
        fields |= {"status": status, "quantity": 1, "unit_price": self.sale.price, "pay_by": pay_by}
        self.orders.create(sale=self.sale, **fields)
        self.show_orders((HERE, "self.orders.create("))
        return "order"

    def buy(self, key: str = "1") -> str:
        """Take a unit, then write the order."""
        return self.order() if self.take() else "sold_out"

    def expire(self) -> None:
        """Expire the unpaid orders whose time is over, and give their units back."""
        due = self.orders.filter(status=Order.Status.PENDING, pay_by__lte=timezone.now())
        units = due.update(status=Order.Status.EXPIRED)
        code = HERE, "due.update(status=Order"
        self.step("database", gettext_noop("%(value)s expired"), units, code)
        self.redis("INCRBY", "stock", units)


class CheckedLate(Textbook):
    """FS1: the limit is checked after the unit was taken."""

    def buy(self, key: str = "1") -> str:
        """Take a unit, check the limit, then write the order."""
        if not self.take():
            return "sold_out"
        if self.orders.filter(customer=self.user).exists():
            return "limit"
        return self.order()

    refusals: ClassVar[dict[str, Place]] = {"limit": (HERE, 'return "limit"')}


class TwoCommands(Textbook):
    """FS2: unit and message are two commands, and a message leaves the queue before its order."""

    def buy(self, key: str = "1") -> str:
        """Take a unit, then send the message."""
        if self.take():
            reach(RESERVED)
            self.redis("RPUSH", "queue", f"{self.recorder.actor[-1]}:{self.user}")
            return "queued"
        return "sold_out"

    def consume(self) -> None:
        """Take the oldest message, then write its order."""
        if user := self.redis("LPOP", "queue"):
            reach(POPPED)
            self.order(int(user.partition(":")[2]))


class SoldOutFlag(Textbook):
    """FS3: the first buyer without a unit sets a flag that refuses all later ones."""

    def buy(self, key: str = "1") -> str:
        """Look at the flag, take a unit, then write the order."""
        if self.redis("EXISTS", "flag"):
            return "sold_out"
        if not self.take():
            self.redis("SET", "flag", 1)
            return "sold_out"
        return self.order()


class BookedBlindly(Textbook):
    """FS4: the payment is booked on the order without a look at its status."""

    def pay(self) -> str:
        """Book the payment that the bank reports."""
        time.sleep(PACE)
        order = self.orders.get(customer=self.user)
        order.status = Order.Status.PAID
        order.save()
        self.show_orders((HERE, "order.save()"))
        return "paid"


class SavedNumber(Textbook):
    """FS6: the form of staff has the number of units, and saves it."""

    def restock(self, shown: int, arrived: int) -> None:
        """Save the sum of the units that the form showed and those that arrived."""
        self.redis("SET", "stock", shown + arrived)
