"""The requests of the textbook flash sales, served by the shop's own services."""

import time
from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext_noop

from devservers.faults.waiting import until
from loadtest.recipes.flash_sale import PACE, RESERVED, RecordedSale
from locking.failpoints import add_observer, reach, remove_observer
from shop.administration.sale_management import restock_sale
from shop.models import Order, Payment
from shop.money import minor_units
from shop.orders.service import expire_unpaid_orders
from shop.payments.providers import Report, State
from shop.payments.service import (
    apply_report,
    refund_payments,
    start_payment,
    time_out_payments,
)
from shop.purchase.admission import admit, cached_sale
from shop.purchase.place_order import place_order
from shop.reservations import order_writer, store
from shop.reservations.reserve import reserve
from shop.sales.purchase_request import PurchaseRequest


class OwnSale(RecordedSale):
    """The shop: queued in Redis, or direct with a payment."""

    def left(self) -> int:
        """Return the units that the shop offers."""
        return (store.left(sale=self.sale) or 0) if self.sale.is_queued else self.sale.left

    def buy(self, key: str = "1") -> str:
        """Buy as the sale page does; start the payment of a direct order."""
        time.sleep(PACE)
        sale = cached_sale(slug=self.sale.slug)
        wanted = PurchaseRequest(self.user, sale, 1, key, is_first_attempt=True)
        admit(wanted)
        if not sale.is_queued:
            order = place_order(wanted).order
            self.show_orders()
            start_payment(order=order)
            return "order"
        reserve(wanted)
        self.sale = sale  # as loaded into Redis
        self._show_left(gettext_noop("script: %(value)s left"))
        self._show_queue(gettext_noop("XADD: %(value)s waiting"))
        reach(RESERVED)
        return "queued"

    def consume(self) -> None:
        """Write a batch of orders."""
        time.sleep(PACE)
        add_observer(self._observe)
        try:
            order_writer.write(sale=self.sale)
        finally:
            remove_observer(self._observe)

    def _observe(self, name: str, facts: Mapping[str, Any]) -> None:
        if name == "queued.committed":
            self.show_orders()
            time.sleep(PACE)
        elif name == "queued.settled":
            self._show_queue(gettext_noop("XDEL: %(value)s waiting"))

    def _show_left(self, what: str) -> None:
        self.step(what, self.left(), lane="Redis")

    def _show_queue(self, what: str) -> None:
        self.step(what, store.backlog(sale=self.sale), lane="queue")

    def expire(self) -> None:
        """Expire the unpaid orders whose time is over."""
        time.sleep(PACE)
        expire_unpaid_orders()
        expired = self.orders.filter(status=Order.Status.EXPIRED).count()
        self.step(gettext_noop("%(value)s expired"), expired)
        if self.sale.is_queued:
            self._show_left(gettext_noop("returned: %(value)s left"))

    def end_payments(self) -> None:
        """End the payments at the provider as soon as their time is over."""
        ended = until(time_out_payments, "the end of a payment")
        self.step(gettext_noop("%(value)s payment ended"), ended)

    def pay(self) -> str:
        """Let the payment provider report that this customer's payment has succeeded."""
        time.sleep(PACE)
        payment = Payment.objects.get(order__in=self.orders.filter(customer=self.user))
        fields = {"reference": payment.reference, "currency": payment.currency}
        amount = minor_units(payment.amount, payment.currency)
        apply_report(report=Report(state=State.PAID, amount=amount, **fields))
        is_refunded = refund_payments() > 0
        self.show_orders()
        return "refunded" if is_refunded else "paid"

    def restock(self, shown: int, arrived: int) -> None:
        """Add the units that arrived, whatever the form showed."""
        restock_sale(sale=self.sale, quantity=arrived)
        self._show_left(gettext_noop("added: %(value)s left"))
