"""Sales, orders and users in the admin.

Prices, stock and orders are written once, through the services, and are read-only afterwards.
"""

from collections.abc import Callable
from datetime import timedelta
from itertools import count
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.auth.admin import UserAdmin
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from inventory.queries import stocked
from locking.admin import ReadOnlyAdmin
from shop.administration.sale_management import close_now, open_now, restock_sale
from shop.errors import Overloaded
from shop.models import Order, Payment, RejectedReservation, Sale, User
from shop.sales.queries import create_sale

MAX_UNITS = 1_000_000
FULFILMENTS = {"direct": _("direct"), "queued": _("queued")}

admin.site.site_header = admin.site.site_title = _("Flash Sale")


@admin.register(User)
class AccountAdmin(UserAdmin):  # type: ignore[type-arg]
    """Customers and staff. Only superusers change permissions and the accounts of staff."""

    list_display = ("username", "email", "is_staff", "is_active", "date_joined", "last_login")
    permission_fields = ("is_staff", "is_superuser", "groups", "user_permissions")

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Make the permissions read-only for staff who are not superusers."""
        fields = super().get_readonly_fields(request, obj)
        return fields if _is_superuser(request) else (*fields, *self.permission_fields)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff: setting a password allows signing in as that user."""
        return super().has_change_permission(request, obj) and self._may_change(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Protect the accounts of staff."""
        return super().has_delete_permission(request, obj) and self._may_change(request, obj)

    def _may_change(self, request: HttpRequest, obj: Any) -> bool:
        return obj is None or _is_superuser(request) or not (obj.is_staff or obj.is_superuser)


def _is_superuser(request: HttpRequest) -> bool:
    return isinstance(request.user, User) and request.user.is_superuser


def _units_field(**options: Any) -> forms.IntegerField:
    limits = [MinValueValidator(1), MaxValueValidator(MAX_UNITS)]
    return forms.IntegerField(label=_("units"), validators=limits, **options)


class NewSaleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A sale and the units of its stock."""

    quantity = _units_field()


class RestockForm(ActionForm):
    """The actions on sales, with the number of units for restocking."""

    units = _units_field(required=False, initial=10)


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Sales, created with their stock; later only the times and the limit can change."""

    list_display = (
        "slug",
        "product",
        "price",
        "left",
        "limit_per_customer",
        "phase",
        "opens_at",
        "closes_at",
        "fulfilment_name",
    )
    list_select_related = ("product", "stock")
    search_fields = ("slug", "product__name", "product__name_zh")
    action_form = RestockForm
    actions = ("restock", "open_now", "close_now", "clone")
    list_filter = ("fulfilment", "opens_at", "closes_at")
    fixed = ("product", "slug", "price", "stock", "fulfilment")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid deletion: orders and the ledger refer to the sale."""
        return False

    def get_form(
        self, request: HttpRequest, obj: Sale | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """Ask for the units only for a new sale."""
        if obj is None:
            kwargs["form"] = NewSaleForm
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Return the fields in the order of a sale's life."""
        new = ("product", "slug", "price", "quantity", "fulfilment")
        first = new if obj is None else self.fixed
        return (*first, "limit_per_customer", "opens_at", "closes_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Make what orders and the ledger refer to read-only."""
        return () if obj is None else self.fixed

    def save_model(self, request: HttpRequest, obj: Sale, form: Any, change: bool) -> None:
        """Save the changed fields, or create a sale with its stock and ledger."""
        if change:
            # Other fields may have changed since, e.g. when a queued sale was loaded.
            obj.save(update_fields=form.changed_data)
        else:
            obj.pk = create_sale(**form.cleaned_data).pk

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Copy the sale of ?clone=<pk>, with the same duration from the next full hour."""
        number = request.GET.get("clone", "")
        sale = self.get_object(request, number) if number else None
        if sale is None:
            return dict(super().get_changeform_initial_data(request))
        taken = set(Sale.objects.values_list("slug", flat=True))
        slugs = (f"{sale.slug[:45]}-{number}" for number in count(2))
        opens_at = timezone.localtime().replace(minute=0, second=0, microsecond=0)
        opens_at += timedelta(hours=1)
        return {
            **forms.model_to_dict(sale),
            "slug": next(slug for slug in slugs if slug not in taken),
            "quantity": stocked(stock_id=sale.stock_id),
            "opens_at": opens_at,
            "closes_at": opens_at + (sale.closes_at - sale.opens_at),
        }

    @admin.display(description=_("left"), ordering="stock__quantity")
    def left(self, sale: Sale) -> int:
        """Return the available units."""
        return sale.left

    @admin.display(description=_("fulfilment"), ordering="fulfilment")
    def fulfilment_name(self, sale: Sale) -> str:
        """Return the fulfilment in one word; the list's filter explains it."""
        return str(FULFILMENTS[sale.fulfilment])

    @admin.display(description=_("phase"))
    def phase(self, sale: Sale) -> str:
        """Return the current phase."""
        return str(sale.phase().label)

    @admin.action(description=_("Restock by this many units"), permissions=["change"])
    def restock(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Add units to the stock of each selected sale, even while it is open."""
        try:
            units = _units_field().clean(request.POST.get("units"))
        except forms.ValidationError as error:
            self.message_user(request, "; ".join(error.messages), messages.ERROR)
            return

        def step(sale: Sale) -> bool:
            restock_sale(sale=sale, quantity=units)
            return True

        self._each(request, sales, step, f"Restocked by {units}.")

    @admin.action(description=_("Open now"), permissions=["change"])
    def open_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Open the selected sales that have not opened yet."""
        self._each(request, sales, open_now, "Opened.")

    @admin.action(description=_("Close now"), permissions=["change"])
    def close_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Close the selected sales that are open."""
        self._each(request, sales, close_now, "Closed.")

    def _each(
        self, request: HttpRequest, sales: QuerySet[Sale], step: Callable[..., bool], log_entry: str
    ) -> None:
        for sale in sales:
            try:
                problem = "" if step(sale=sale) else _("not possible in its current phase.")
            except Overloaded as error:
                problem = error.title
            if problem:
                self.message_user(request, f"{sale.slug}: {problem}", messages.ERROR)
            else:
                self.log_change(request, sale, log_entry)
                self.message_user(request, _("%s: done.") % sale.slug, messages.SUCCESS)

    @admin.action(description=_("Clone: a new sale like this one"), permissions=["add"])
    def clone(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Open the form of a new sale with the values of the selected one."""
        if len(sales) != 1:
            self.message_user(request, _("Choose one sale to clone."), messages.ERROR)
            return None
        return redirect(f"{reverse('admin:shop_sale_add')}?clone={sales[0].pk}")


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    """Orders, read-only: customers and scheduled jobs change them."""

    list_display = ("number", "customer", "sale", "quantity", "unit_price", "status", "created_at")
    list_filter = ("status", "created_at", "sale__fulfilment", "sale__product")
    list_select_related = ("customer", "sale__product")
    search_fields = ("number", "customer__username", "sale__slug")
    show_full_result_count = False


@admin.register(RejectedReservation)
class RejectedReservationAdmin(ReadOnlyAdmin):
    """Reservations of queued sales that did not become orders, and why."""

    list_display = ("number", "sale", "customer_id", "quantity", "reason", "created_at")
    list_filter = ("reason", "sale")
    list_select_related = ("sale__product",)
    search_fields = ("number", "customer_id", "detail")
    show_full_result_count = False


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """Payments, read-only: the payment service decides them."""

    list_display = ("reference", "order", "amount", "status", "created_at", "closed_at")
    list_filter = ("status", "created_at")
    list_select_related = ("order",)
    search_fields = ("reference", "order__number")
    show_full_result_count = False
