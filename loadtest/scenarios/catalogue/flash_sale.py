"""The failures of flash sales themselves: units in Redis, orders in a queue, payments, restocks."""

import time
from functools import partial

from django.utils.translation import gettext_noop

from loadtest.recipes.flash_sale import PACE, POPPED, RESERVED
from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import FlashSale
from loadtest.scenarios.testbed import Testbed
from shop.models import Order

HOLD = 1.0
"""Seconds of the lock around the payment, and of an order's time to pay; in a shop, minutes."""
PAYMENT = 1.6
"""Seconds for which a customer pays."""
direct, queued = FlashSale, partial(FlashSale, fulfilment="queued")


@scenario(
    fault="refused",
    row="FS1",
    broken=gettext_noop("DECR, then the check"),
    repaired=gettext_noop("shop, one script"),
)
def unit_lost_to_a_check(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let one buyer exceed the limit, and another want what is left."""
    sale = queued(testbed, "CheckedLate", is_repaired, "A, B, consumer", stock=2)
    for who, key in (("A", "1"), ("A", "2"), ("B", "1")):
        sale.ask(who, "buy", key=key)
    if is_repaired:
        sale.ask("consumer", "consume")
    return sale.count()


@scenario(
    fault="message",
    row="FS2",
    broken=gettext_noop("DECR, then RPUSH; LPOP"),
    repaired=gettext_noop("shop, the message is deleted last"),
)
def crash_between_redis_and_queue(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill a buyer's process after it took a unit, and a consumer in the middle of its work."""
    sale = queued(testbed, "TwoCommands", is_repaired, "A, B, consumer, consumer 2", stock=2)
    sale.ask("A", "buy", dies_at=RESERVED)
    sale.ask("B", "buy")
    sale.ask("consumer", "consume", dies_at="queued.read" if is_repaired else POPPED)
    sale.ask("consumer 2", "consume")
    return sale.count()


@scenario(
    fault="returned",
    row="FS3",
    broken=gettext_noop("DECR and a sold-out flag"),
    repaired=gettext_noop("shop, sold out is computed"),
)
def sold_out_for_ever(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let the only unit come back after a buyer was refused; the same buyer tries again."""
    sale = queued(testbed, "SoldOutFlag", is_repaired, "A, B, consumer, worker", stock=1)
    sale.ask("A", "buy")
    sale.ask("B", "buy")
    if is_repaired:
        sale.ask("consumer", "consume")
    sale.expire()
    told = sale.ask("B", "buy")
    if is_repaired:
        sale.ask("consumer", "consume")
    return sale.count(refused=told == "sold_out")


@scenario(
    fault="payment",
    row="FS4",
    broken=gettext_noop("payments are booked blindly"),
    repaired=gettext_noop("shop, late payments are refunded"),
)
def payment_after_expiry(testbed: Testbed, is_repaired: bool) -> Facts:
    """Expire an order, sell its unit again, and report the payment of the first buyer."""
    sale = direct(testbed, "BookedBlindly", is_repaired, "A, B, worker", stock=1)
    sale.ask("A", "buy")
    sale.expire()
    for who, do in (("B", "buy"), ("B", "pay"), ("A", "pay")):
        sale.ask(who, do)
    return sale.count()


@scenario(
    fault="late",
    row="FS5",
    broken="SET NX PX",
    repaired=gettext_noop("shop, the order holds the unit"),
)
def lock_while_paying(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let buyer A's payment outlast what holds the unit, while buyer B waits for it."""
    testbed.add_lock("set_px", "loadtest.recipes.redis_textbook.SetExpireBackend")
    sale = direct(testbed, "Textbook", is_repaired, "A, B, worker", stock=1)
    facts = {"hold": HOLD, "payment": PAYMENT}
    if is_repaired:
        sale.ask("A", "buy")
        with sale.paying("A"):
            sale.ask("B", "buy")
            sale.ask("worker", "end_payments")
        sale.expire()
        sale.ask("B", "buy")
        sale.ask("B", "pay")
        return sale.count() | facts
    lock = {"alias": "set_px", "name": "unit:1", "ttl": HOLD, "timeout": 2 * HOLD, "renew": False}
    sale.processes["A"].call("acquire", **lock)
    paid_at = time.monotonic() + PAYMENT
    with sale.paying("A"):
        sale.processes["B"].call("acquire", **lock)
        with sale.paying("B"):
            time.sleep(3 * PACE)
        sale.ask("B", "order", status=Order.Status.PAID)
        sale.processes["B"].call("release", name=lock["name"])
        time.sleep(max(0.0, paid_at - time.monotonic()))
    sale.ask("A", "order", status=Order.Status.PAID)
    sale.processes["A"].call("release", name=lock["name"])
    return sale.count() | facts


@scenario(
    fault="restock",
    row="FS6",
    broken=gettext_noop("the form saves a number"),
    repaired=gettext_noop("shop, the form adds a number"),
)
def restock_overwrites_sales(testbed: Testbed, is_repaired: bool) -> Facts:
    """Sell a unit between the moment at which staff open the form and the moment they save it."""
    sale = queued(testbed, "SavedNumber", is_repaired, "A, B, C, D, staff, consumer", stock=2)
    shown = sale.sale.left
    testbed.note("step", lane="staff", what=gettext_noop("the form shows %(value)s"), value=shown)
    sale.ask("A", "buy")
    testbed.note("step", lane="staff", what=gettext_noop("saving one more unit"))
    sale.ask("staff", "restock", shown=shown, arrived=1)
    for who in ("B", "C", "D"):
        sale.ask(who, "buy")
    if is_repaired:
        sale.ask("consumer", "consume")
    return sale.count(arrived=1)
