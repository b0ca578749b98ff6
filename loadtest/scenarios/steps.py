"""Sequences of steps that several scenarios run."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext_noop

from devservers.faults.waiting import FaultFailed, until
from loadtest.kernel.history import SECOND, history
from loadtest.load.shop_worker import DESCRIPTIONS, ShopWorker
from loadtest.recipes.flash_sale import PACE
from loadtest.scenarios.testbed import Testbed
from shop.administration.audit import audit_sale
from shop.models import Order, Payment, Sale

LOCK = "sale:1"
HOLD_SECONDS = 0.2
"""Seconds for which the second process keeps the lock, so that the chart shows it."""
WAIT_SECONDS = 2.0
"""Seconds after which a waiter counts as waiting forever; twice the longest lease here."""
ANSWERED = 60.0
"""More seconds than any answer takes."""
WORK_SECONDS = 0.5
"""Seconds for which a holder works while another buyer waits for its lock."""
CHECK_SECONDS = 0.3
"""Seconds between the second buyer's read and its write, where a shop checks the payment."""
WRONG = {
    "lost": gettext_noop("%(value)s lost"),
    "oversold": gettext_noop("%(value)s oversold"),
    "unsold": gettext_noop("%(value)s left, but refused"),
}


def buy_while_holder_stalls(
    testbed: Testbed,
    *,
    fault: str = "wait",
    meanwhile: Callable[[], object] = lambda: None,
    at_least: float = 0.0,
    at_most: float = ANSWERED,
    timeout: float = 5.0,
    **options: Any,
) -> dict[str, Any]:
    """Stall a buyer between its read and its write while a second buyer wants the same last unit.

    `fault` is a `ProcessFault`; with "wait", the first process and its watchdog run on. During the
    stall, `meanwhile` is called before the second purchase, which waits for the lock for `timeout`
    seconds. The stall ends when that purchase is answered, within `at_least` and `at_most` seconds.
    `options` belong to the first purchase (see `ShopCommands.buy`).
    """
    sale = testbed.open_sale()
    first = testbed.worker("buyer A", timeout=max(2.0, timeout))
    second = testbed.worker("buyer B", timeout=timeout)
    first.start("buy", sale=sale.pk, user=testbed.create_customer(), fault=fault, **options)
    first.wait_for_fault()
    stalled_at = time.monotonic()
    meanwhile()
    second.start("buy", sale=sale.pk, user=testbed.create_customer(), think=CHECK_SECONDS)
    second.is_silent(at_most)
    time.sleep(max(0.0, stalled_at + at_least - time.monotonic()))
    stalled = time.monotonic() - stalled_at
    # Recorded here: in the process, another thread may be the first to go on.
    testbed.note("fault", "end", what=DESCRIPTIONS[fault], lane="buyer A")
    first.end_fault()
    first.receive()
    answer = second.receive()
    mine = (event for event in history(testbed.folder) if event["actor"] == "buyer B")
    asked, answered, *_later = (event["t"] for event in mine if event["do"] == "acquire")
    return {
        **sold(sale),
        "second_waited": round((answered - asked) / SECOND, 3),
        "second_told": answer.get("error", "order"),
        "stalled": round(stalled, 2),
    }


def sold(sale: Sale) -> dict[str, Any]:
    """Return what the audit found, as facts; it "broke" if units are oversold."""
    audit = audit_sale(sale=sale)
    return {
        "stock": audit.initial,
        "sold": audit.held,
        "oversold": audit.oversold,
        "refused": audit.stale_writes_refused,
        "broke": audit.oversold > 0,
    }


def crash_and_wait(
    testbed: Testbed,
    alias: str,
    *,
    ttl: float,
    at: str = "",
    timeout: float = WAIT_SECONDS,
    works: float = 0.0,
    renew: bool = True,
) -> dict[str, Any]:
    """Kill a holder that `works`, or a process at the fail point `at`; another wants its lock."""
    holder, waiter = (testbed.worker(name) for name in ("buyer A", "buyer B"))
    asked = {"alias": alias, "name": LOCK, "timeout": 5, "ttl": ttl, "renew": renew}
    if at:
        holder.start("acquire", fault="kill", at=at, **asked)
        holder.wait_for_fault()
        testbed.note("kept", lane="buyer A")  # the store keeps the dead process's lock
    else:
        if not holder.call("acquire", **asked)["ok"]:
            raise FaultFailed("the lock was not free")
        time.sleep(works)
        testbed.kill(holder, "buyer A")
        if alias == "mysql_session":  # the kernel has closed the connection with the process
            testbed.note("gone", "session", lane="buyer A")
    answer = waiter.call("acquire", alias=alias, name=LOCK, timeout=timeout, ttl=ttl)
    if answer["ok"]:
        time.sleep(HOLD_SECONDS)
        waiter.call("release", name=LOCK)
    return {
        "ttl": ttl,
        "waited": round(answer["seconds"], 3),
        "granted": int(answer["ok"]),
        "broke": not answer["ok"],
    }


def _lane_of(actor: str) -> str:
    return f"buyer {actor}" if len(actor) == 1 else actor


class FlashSale:
    """A sale, and a process for each of its actors: buyers "A" to "D", or others by their names.

    A recipe, a class in `loadtest.recipes.flash_sale`, serves them in the broken variant. In the
    repaired one, the shop serves the same requests.
    """

    def __init__(
        self, testbed: Testbed, recipe: str, is_repaired: bool, actors: str, **options: Any
    ) -> None:
        own, textbook = "loadtest.load.own_sale:OwnSale", f"loadtest.recipes.flash_sale:{recipe}"
        self.testbed, self.served_by = testbed, own if is_repaired else textbook
        testbed.use("conditional")
        testbed.hides_stock = True
        self.sale = testbed.open_sale(**options)
        names = actors.split(", ")
        while len(testbed.stores.idle) < len(names):  # they start at the same time
            testbed.stores.idle.append(ShopWorker())
        self.processes = {who: testbed.worker(_lane_of(who)) for who in names}
        self._customers = {who: testbed.create_customer() for who in names}

    def shop(self) -> Any:
        """Return the recipe or the shop as this process uses it."""
        return resolve_name(self.served_by)(self.testbed.recorder, self.sale.pk, 0)

    def ask(self, who: str, name: str, *, dies_at: str = "", **fields: Any) -> str:
        """Let an actor do something, and return the answer; kill its process at a fail point."""
        process, user = self.processes[who], self._customers[who]
        request = {"served_by": self.served_by, "sale": self.sale.pk, "user": user}
        request |= {"name": name, "fields": fields}
        if not dies_at:
            return str(process.call("visit", **request)["told"])
        process.start("visit", fault="kill", at=dies_at, **request)
        process.wait_for_fault()
        self.shop().show_orders()
        return "killed"

    def expire(self) -> None:
        """Wait until an unpaid order is over, and expire it."""
        due = Order.objects.filter(sale=self.sale, status=Order.Status.PENDING)
        until(lambda: due.filter(pay_by__lte=timezone.now()).exists(), "the end of an order")
        self.ask("worker", "expire")

    @contextmanager
    def paying(self, who: str) -> Iterator[None]:
        """Show that an actor pays until the block ends."""
        self.testbed.note("fault", "start", what="pays", lane=_lane_of(who))
        yield
        self.testbed.note("fault", "end", what="pays", lane=_lane_of(who))

    def count(self, *, arrived: int = 0, refused: bool = False) -> dict[str, Any]:
        """Return what orders and Redis say in the end.

        It broke if units are lost or oversold, or if the last buyer was refused although some are
        left.
        """
        time.sleep(PACE)
        found = Counter(Order.objects.filter(sale=self.sale).values_list("status", flat=True))
        payments = Payment.objects.filter(order__sale=self.sale)
        sold, left = sum(found[status] for status in Order.LIVE), self.shop().left()
        stock = self.sale.stock.quantity + arrived
        wrong = {"lost": stock - sold - left, "oversold": sold - stock, "unsold": left * refused}
        for what, units in wrong.items():
            if units > 0:
                told = {"what": WRONG[what], "value": units, "sign": "kill"}
                self.testbed.note("step", lane="database", **told)
        return {
            **{"stock": stock, "sold": sold, "left": left, "paid": found[Order.Status.PAID]},
            "refunded": payments.filter(status=Payment.Status.REFUNDED).count(),
            **{what: max(0, units) for what, units in wrong.items()},
            "broke": max(wrong.values()) > 0,
        }
