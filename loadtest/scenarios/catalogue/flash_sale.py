"""The failures of flash sales themselves: units in Redis, orders in a queue, payments, restocks."""

import time
from functools import partial

from django.utils.translation import gettext_lazy as _
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
    name="unit-lost-to-a-check",
    fault="refused",
    row="FS1",
    title=_("A refused buyer keeps a unit"),
    broken=gettext_noop("DECR, then the check"),
    repaired=gettext_noop("shop, one script"),
    story=_(
        "Buyer A had one order and sent a second form: DECR took a unit, and the limit refused "
        "the order.\n"
        "Buyer B was told “sold out”: %(b_sold)d ordered of %(b_stock)d, %(b_lost)d lost.\n"
        "The shop checks the limit and takes the unit in one script: %(r_sold)d ordered of "
        "%(r_stock)d."
    ),
    repair=_("One script that checks everything before it takes a unit."),
    immune=_("Direct sales: the transaction that refuses an order takes no unit."),
    requires_overlap=False,
)
def _checked_late(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let one buyer exceed the limit, and another want what is left."""
    sale = queued(testbed, "CheckedLate", is_repaired, "A, B, consumer", stock=2)
    for who, key in (("A", "1"), ("A", "2"), ("B", "1")):
        sale.ask(who, "buy", key=key)
    if is_repaired:
        sale.ask("consumer", "consume")
    return sale.count()


@scenario(
    name="crash-between-redis-and-queue",
    fault="message",
    row="FS2",
    title=_("A crash between Redis and the queue"),
    broken=gettext_noop("DECR, then RPUSH; LPOP"),
    repaired=gettext_noop("shop, stream with acknowledgement"),
    story=_(
        "Buyer A's process was killed after DECR and before RPUSH; a consumer was killed after it "
        "took buyer B's message.\n"
        "Redis has %(b_left)d units left and the database %(b_sold)d orders: %(b_lost)d of "
        "%(b_stock)d units are lost.\n"
        "In the shop, the same two crashes lost %(r_lost)d units: A's entry was already in the "
        "stream, and the second consumer read both entries again: %(r_sold)d orders for "
        "%(r_stock)d units."
    ),
    repair=_(
        "One script takes the unit and adds the entry. The entry stays in the stream until its "
        "order is committed. It carries the order's number, so a second reading is harmless."
    ),
    immune=_("Direct sales: unit and order are written in one transaction."),
    requires_overlap=False,
)
def _two_commands(testbed: Testbed, is_repaired: bool) -> Facts:
    """Kill a buyer's process after it took a unit, and a consumer in the middle of its work."""
    sale = queued(testbed, "TwoCommands", is_repaired, "A, B, consumer, consumer 2", stock=2)
    sale.ask("A", "buy", dies_at=RESERVED)
    sale.ask("B", "buy")
    sale.ask("consumer", "consume", dies_at="queued.read" if is_repaired else POPPED)
    sale.ask("consumer 2", "consume")
    return sale.count()


@scenario(
    name="sold-out-for-ever",
    fault="returned",
    row="FS3",
    title=_("Sold out for ever"),
    broken=gettext_noop("DECR and a sold-out flag"),
    repaired=gettext_noop("shop, sold out is computed"),
    story=_(
        "Buyer A held the last unit and did not pay; buyer B found none, and the flag was set.\n"
        "A's order expired and Redis had %(b_left)d unit again, but B was still told “sold out”: "
        "%(b_sold)d ordered of %(b_stock)d.\n"
        "The shop has no flag: after A's order expired, B got the unit: %(r_sold)d ordered of "
        "%(r_stock)d."
    ),
    repair=_("“Sold out” is computed from the units left, read at most a tenth of a second ago."),
    immune=_("Sales that store no flag, only the number of units."),
    requires_overlap=False,
)
def _sold_out_flag(testbed: Testbed, is_repaired: bool) -> Facts:
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
    name="payment-after-expiry",
    fault="payment",
    row="FS4",
    title=_("The payment arrives too late"),
    broken=gettext_noop("payments are booked blindly"),
    repaired=gettext_noop("shop, late payments are refunded"),
    story=_(
        "Buyer A's order expired, and its unit went to buyer B, who paid. Then A's payment "
        "arrived.\n"
        "The recipe booked it: %(b_paid)d paid orders for %(b_stock)d unit.\n"
        "The shop refunded %(r_refunded)d payment: %(r_paid)d paid order for %(r_stock)d unit."
    ),
    repair=_("One UPDATE pays the order only if it is pending and in time. Otherwise: a refund."),
    immune=_("None: every payment provider sometimes reports late."),
    requires_overlap=False,
)
def _late_payment(testbed: Testbed, is_repaired: bool) -> Facts:
    """Expire an order, sell its unit again, and report the payment of the first buyer."""
    sale = direct(testbed, "BookedBlindly", is_repaired, "A, B, worker", stock=1)
    sale.ask("A", "buy")
    sale.expire()
    for who, do in (("B", "buy"), ("B", "pay"), ("A", "pay")):
        sale.ask(who, do)
    return sale.count()


@scenario(
    name="lock-while-paying",
    fault="late",
    row="FS5",
    title=_("A lock while the customer pays"),
    broken="SET NX PX",
    repaired=gettext_noop("shop, the order holds the unit"),
    story=_(
        "Buyer A locked the unit for %(b_hold).0f s (shortened from five minutes), but the payment "
        "took %(b_payment).1f s. The key expired, and buyer B locked the same unit.\n"
        "Both payments succeeded: %(b_sold)d sold of %(b_stock)d.\n"
        "In the shop the order holds the unit. A's payment was ended at the provider before the "
        "order expired, and only B paid: %(r_paid)d paid order for %(r_stock)d unit."
    ),
    repair=_(
        "The order holds the unit without a lock, until a deadline in its row. The shop ends the "
        "payment at the provider before that deadline."
    ),
    immune=_("None: no lease can know how long a payment takes."),
)
def _lock_while_paying(testbed: Testbed, is_repaired: bool) -> Facts:
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
    name="restock-overwrites-sales",
    fault="restock",
    row="FS6",
    title=_("Staff add stock in mid-sale"),
    broken=gettext_noop("the form saves a number"),
    repaired=gettext_noop("shop, the form adds a number"),
    story=_(
        "The form of staff showed 2 units; buyer A bought one of them. Staff added the unit that "
        "had arrived and saved 3.\n"
        "A's unit was in stock again: %(b_sold)d ordered of %(b_stock)d.\n"
        "The shop added 1 to what was left: %(r_sold)d ordered of %(r_stock)d."
    ),
    repair=_("The form asks how many units have arrived, and one UPDATE adds them."),
    immune=_("None: a form that saves a number overwrites every sale since it was opened."),
    requires_overlap=False,
)
def _restock(testbed: Testbed, is_repaired: bool) -> Facts:
    """Sell a unit between the moment at which staff open the form and the moment they save it."""
    sale = queued(testbed, "SavedNumber", is_repaired, "A, B, C, D, staff, consumer", stock=2)
    shown = sale.sale.left
    testbed.note("step", lane="staff", what=gettext_noop("the form shows %(value)s"), value=shown)
    sale.ask("A", "buy")
    testbed.note("step", lane="staff", what=gettext_noop("one unit more: save"))
    sale.ask("staff", "restock", shown=shown, arrived=1)
    for who in ("B", "C", "D"):
        sale.ask(who, "buy")
    if is_repaired:
        sale.ask("consumer", "consume")
    return sale.count(arrived=1)
