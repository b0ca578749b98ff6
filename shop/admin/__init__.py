"""Sales, orders and users in the admin.

Prices, stock and orders are written once, through the services, and are read-only afterwards.
"""

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.forms import UserChangeForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.formats import localize
from django.utils.html import format_html
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from inventory.admin import KeepingForm
from inventory.money import with_sign
from locking.admin import LargeTable, ReadOnlyAdmin, confirm
from locking.admin.policy import LockPolicyAdmin
from shop.admin.sale_pages import PageActions
from shop.admin.sales import SaleAdmin
from shop.administration.history import entry
from shop.errors import InvalidTransition
from shop.mail.models import Message
from shop.models import DeliveryAddress, Order, Payment, RejectedReservation, Sale, User
from shop.payments.providers import can_pay
from shop.payments.service import mark_paid, refund_order, refund_refusal, refuse_refund
from shop.sales.guards import guard_title

LockPolicyAdmin.named = staticmethod(guard_title)
admin.site.register(Sale, SaleAdmin)


class AccountForm(KeepingForm, UserChangeForm):  # type: ignore[type-arg]
    """Django's form; an older page does not open an account again, or return its rights."""


@admin.register(User)
class AccountAdmin(LargeTable, UserAdmin):  # type: ignore[type-arg]
    """Customers and staff. Only superusers change permissions and the accounts of staff."""

    form = AccountForm
    list_display = ("username", "email", "is_staff", "is_active", "date_joined", "last_login")
    list_filter = ("is_staff", "is_active", "groups")
    search_fields = ("username", "email")
    ordering = ("username",)
    permission_fields = ("is_staff", "is_superuser", "groups", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the permissions read-only for staff who are not superusers."""
        fields = super().get_readonly_fields(request, obj)
        return fields if request.user.is_superuser else (*fields, *self.permission_fields)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff: setting a password allows signing in as that user."""
        return super().has_change_permission(request, obj) and self._may_change(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff."""
        return super().has_delete_permission(request, obj) and self._may_change(request, obj)

    def _may_change(self, request: HttpRequest, obj: Any) -> bool:
        is_staff = obj is not None and (obj.is_staff or obj.is_superuser)
        return request.user.is_superuser or not is_staff


class ToShip(admin.SimpleListFilter):
    """Orders that wait to be packed."""

    title, parameter_name = _("shipping"), "to_ship"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        """Return the only choice."""
        return [("1", _("Paid, not shipped"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Order]) -> QuerySet[Order]:
        """Find the few addresses first: an index has them."""
        if not self.value():
            return queryset
        waiting = DeliveryAddress.objects.filter(shipped_at=None).values("order")
        return queryset.filter(status=Order.Status.PAID, pk__in=waiting)


class AddressInline(admin.StackedInline):  # type: ignore[type-arg]
    """The delivery address of an order, read-only: its customer changes it."""

    model = DeliveryAddress
    verbose_name_plural = DeliveryAddress._meta.verbose_name
    fields = readonly_fields = (*DeliveryAddress.LINES, "shipped_at")
    can_delete = False
    max_num = 0


@admin.register(Order)
class OrderAdmin(PageActions, LargeTable, ReadOnlyAdmin):
    """Orders: customers and scheduled jobs change them, staff refund them or mark them as paid."""

    view_on_site = False  # only its customer can open the page

    list_display = (
        "number",
        "marked_status",
        "total",
        "customer",
        "sale",
        "quantity",
        "created_at",
        "shipped_at",
    )
    list_filter = ("status", ToShip, "created_at")
    ordering = ("-created_at", "-pk")
    search_fields = ("number", "sale__slug", "customer__username", "customer__email")
    personal_fields = ("address__phone", "address__name")
    search_help_text = _(
        "Order number, slug of the sale, user name, email, phone or recipient. Finds equal values;"
        " if there are none, values that begin with the text."
    )
    fields = ("number", "state", "customer", "sale", "quantity", "total", "created_at")
    shown_with = ("customer", "sale__product", "address")
    actions = ("refund", "mark_paid")

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Name the sale whose orders are listed."""
        number = request.GET.get("sale__exact", "")
        sale = Sale.objects.filter(pk=number).first() if number.isdecimal() else None
        return super().changelist_view(request, {"subtitle": sale, **(extra_context or {})})

    def get_search_fields(self, request: HttpRequest) -> Any:
        """Search addresses only for staff who may see them."""
        may_see = request.user.has_perm("shop.view_deliveryaddress")
        return (*self.search_fields, *(self.personal_fields if may_see else ()))

    def get_inlines(self, request: HttpRequest, obj: Order | None) -> Any:
        """Show the address of an order that has one."""
        return [AddressInline] if hasattr(obj, "address") else []

    @admin.display(description=_("Status"))
    def state(self, order: Order) -> str:
        """Return the status and its time: when it began, or until when the order can be paid."""
        unpaid, closed = _("%(status)s, until %(time)s"), _("%(status)s at %(time)s")
        words, when = (closed, order.closed_at) if order.closed_at else (unpaid, order.pay_by)
        time = localize(localtime(when))
        return words % {"status": order.get_status_display(), "time": time}

    @admin.display(description=_("Status"))
    def marked_status(self, order: Order) -> str:
        """Return the status as customers see it."""
        return render_to_string("shop/_status.html", {"order": order})

    @admin.display(description=_("Total"))
    def total(self, order: Order) -> str:
        """Return the price of all units, with the currency."""
        return with_sign(order.total, order.currency)

    @admin.display(description=_("shipped at"))
    def shipped_at(self, order: Order) -> Any:
        """Return when the order was shipped; Django shows a dash for one without an address."""
        return order.address.shipped_at

    def has_refund_permission(self, request: HttpRequest) -> bool:
        """Return True for staff who may change orders."""
        return request.user.has_perm("shop.change_order")

    def has_mark_paid_permission(self, request: HttpRequest) -> bool:
        """Return True for them if no payment provider decides which orders are paid."""
        return not can_pay() and self.has_refund_permission(request)

    @admin.action(description=_("Cancel and refund"), permissions=["refund"])
    def refund(self, request: HttpRequest, orders: QuerySet[Order]) -> HttpResponse | None:
        """Cancel the selected paid orders and refund them, once their number has been typed.

        Without one that can be refunded, say why at once.
        """
        chosen = list(orders.select_related("sale__product", "sale__stock", "customer", "address"))
        paid = Payment.objects.filter(order__in=chosen, status=Payment.Status.APPROVED)
        outside = set(paid.filter(provider_id="").values_list("order", flat=True))
        name = chosen[0].number if len(chosen) == 1 else str(len(chosen))
        shown = {"orders": chosen, "outside": outside}
        may_refund = not all(refund_refusal(order=order) for order in chosen)
        template = "admin/shop/order/refund.html"
        if may_refund and (asked := confirm(request, self, template, name=name, **shown)):
            return asked
        step = refund_order if may_refund else refuse_refund
        done = (
            _(
                "%s is marked as refunded. The payment provider returns the money: don't do it"
                " yourself."
            ),
            _("%s is marked as refunded. Return the money where it was paid."),
        )
        for order in chosen:
            said = done[order.pk in outside], _("It has no payment that can be refunded.")
            log_entry = entry(gettext_noop("Cancelled and refunded."))
            self.each(request, [order], step, log_entry, *said)
        return None

    @admin.action(description=_("Mark as paid"), permissions=["mark_paid"])
    def mark_paid(self, request: HttpRequest, orders: QuerySet[Order]) -> None:
        """Record that the selected orders were paid outside of the shop."""
        log_entry = entry(gettext_noop("Marked as paid outside of the shop."))
        said = log_entry, _("%s is marked as paid."), InvalidTransition.advice
        self.each(request, orders, mark_paid, *said)


@admin.register(RejectedReservation)
class RejectedReservationAdmin(LargeTable, ReadOnlyAdmin):
    """Reservations of queued sales that did not become orders, and why."""

    list_display = ("number", "sale", "customer_id", "quantity", "reason", "created_at")
    search_fields = ("number", "sale__slug", "customer_id")
    shown_with = ("sale__product",)


@admin.register(Payment)
class PaymentAdmin(LargeTable, ReadOnlyAdmin):
    """Payments, read-only: the payment provider decides them."""

    list_display = ("reference", "order", "total", "status", "created_at", "refunded_at")
    list_filter = ("status",)
    search_fields = ("reference", "order__number", "provider_id")
    fields = (*list_display, "provider_id")
    shown_with = ("order",)

    @admin.display(description=_("amount"))
    def total(self, payment: Payment) -> str:
        """Return the amount with its currency."""
        return with_sign(payment.amount, payment.currency)


MAIL = {
    "unpaid": (_("Waiting for payment"), "order"),
    "paid": (_("Paid"), "order"),
    "shipped": (_("Shipped"), "order"),
    "refund": (_("Refund"), "payment"),
    "opening": (_("Opening soon"), "sale"),
    "turn": (_("It's your turn"), "sale"),
    "reset": (_("Set a new password"), ""),
}
"""What staff call a message, and the model that it is about; applications add other kinds."""


@admin.register(Message)
class MessageAdmin(LargeTable, ReadOnlyAdmin):
    """Email to customers."""

    list_display = ("title", "row", "customer", "state", "attempts", "due_at", "created_at")
    list_filter = ("state",)
    search_fields = ("customer__username",)
    fields = list_display
    shown_with = ("customer",)

    @admin.display(description=_("kind"))
    def title(self, message: Message) -> str:
        """Return what staff call the message."""
        return str(MAIL.get(message.kind, (message.kind,))[0])

    @admin.display(description=_("about"))
    def row(self, message: Message) -> str:
        """Link to the order, payment or sale."""
        if not (model := MAIL.get(message.kind, ("", ""))[1]):
            return "–"
        page = reverse(f"admin:shop_{model}_change", args=[message.about])
        return format_html('<a href="{}">{}</a>', page, message.about)
