"""The requests of the textbook flash sales, served by the shop's own services."""

import time
from typing import ClassVar

from django.utils.translation import gettext_noop

from devservers.faults.waiting import until
from inventory.money import minor_units
from loadtest.recipes.flash_sale import PACE, RESERVED, Place, RecordedSale
from locking.failpoints import reach
from shop.administration.sale_management import restock_sale
from shop.models import Order, Payment
from shop.orders.service import expire_unpaid_orders
from shop.payments import service as payments
from shop.payments.providers import Report, State
from shop.purchase.admission import admit, cached_sale
from shop.purchase.place_order import place_order
from shop.reservations import order_writer, store
from shop.reservations.reserve import reserve
from shop.sales.purchase_request import PurchaseRequest

LUA = "shop/reservations/lua"
STOCK, PAYMENTS = "inventory/stock.py", "shop/payments/service.py"


class OwnSale(RecordedSale):
    """The shop: a queued sale in Redis, or a direct sale with payments."""

    refusals: ClassVar[dict[str, Place]] = {
        "limit": (f"{LUA}/reserve.lua", "return 'limit'"),
        "sold_out": ("shop/models.py", "self.Phase.OPEN if self.left"),
    }

    def left(self) -> int:
        """Return the units that the shop offers."""
        return (store.left(sale=self.sale) or 0) if self.sale.is_queued else self.sale.left

    def _show(self, lane: str, what: str, value: int, script: str, part: str) -> None:
        self.step(lane, what, value, (f"{LUA}/{script}.lua", part))

    def buy(self, key: str = "1") -> str:
        """Buy as the sale page does; start the payment of a direct order."""
        time.sleep(PACE)
        self.sale = cached_sale(slug=self.sale.slug)
        wanted = PurchaseRequest(self.user, self.sale, 1, key, is_first_attempt=True)
        admit(wanted)
        if not self.sale.is_queued:
            order = place_order(wanted).order
            self.show_orders((STOCK, "WHERE id = %s AND quantity >= %s"))
            payments.start_payment(order=order)
            return "order"
        reserve(wanted)
        text = gettext_noop("script: %(value)s left")
        self._show("Redis", text, self.left(), "reserve", "'queued', quantity")
        waiting = store.backlog(sale=self.sale)
        self._show("queue", gettext_noop("XADD: %(value)s waiting"), waiting, "reserve", "'XADD'")
        reach(RESERVED)
        return "queued"

    def consume(self) -> None:
        """Write a batch of orders."""
        time.sleep(PACE)
        order_writer.write(sale=self.sale)
        self.show_orders(("shop/reservations/order_writer.py", "withdraw(lease, [sold]"))
        waiting = store.backlog(sale=self.sale)
        self._show("queue", gettext_noop("XDEL: %(value)s waiting"), waiting, "settle", "'XDEL'")

    def expire(self) -> None:
        """Expire the unpaid orders whose time is over."""
        expire_unpaid_orders()
        expired = self.orders.filter(status=Order.Status.EXPIRED).count()
        code = "shop/orders/service.py", "commit([_end(orders"
        self.step("database", gettext_noop("%(value)s expired"), expired, code)
        if self.sale.is_queued:
            text = gettext_noop("returned: %(value)s left")
            self._show("Redis", text, self.left(), "release", "'stock', ARGV[2]")

    def end_payments(self) -> None:
        """End the payments at the provider as soon as their time is over."""
        ended = until(payments.time_out_payments, "the end of a payment")
        code = PAYMENTS, "provider().close(payment)"
        self.step("database", gettext_noop("%(value)s payment ended"), ended, code)

    def pay(self) -> str:
        """Let the payment provider report that this customer's payment has succeeded."""
        time.sleep(PACE)
        one = Payment.objects.get(order__in=self.orders.filter(customer=self.user))
        amount, currency = minor_units(one.amount, one.currency), one.currency
        state, reference = State.PAID, one.reference
        payments.apply_report(
            report=Report(reference=reference, state=state, amount=amount, currency=currency)
        )
        if refunded := payments.refund_payments():
            code = PAYMENTS, "unpaid.update(status=Status.REFUNDING"
            self.step("database", gettext_noop("%(value)s refunded"), refunded, code)
            return "refunded"
        self.show_orders(("shop/orders/service.py", "AND status = %s AND pay_by > %s"))
        return "paid"

    def restock(self, shown: int, arrived: int) -> None:
        """Add the units that arrived."""
        restock_sale(sale=self.sale, quantity=arrived)
        self.sale.stock.refresh_from_db()
        code = STOCK, "quantity + %s, fence_token = fence_token"
        text = gettext_noop("UPDATE adds: %(value)s in stock")
        self.step("database", text, self.sale.stock.quantity, code)
        text = gettext_noop("script: %(value)s left")
        self._show("Redis", text, self.left(), "set_stock", "'stock', ARGV[1]")
