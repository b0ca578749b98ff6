"""Sales, orders and people for staff.

What money or stock hangs on is set once, through the services, and only read afterwards.
"""

from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.contrib.auth.admin import UserAdmin
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from inventory import services as stock
from inventory.admin import ReadOnlyAdmin
from shop.models import Order, Payment, Sale, SetAside, User
from shop.queued.loading import reconcile_soon
from shop.sales import create_sale

MAX_PIECES = 1_000_000

admin.site.register(User, UserAdmin)
admin.site.site_header = admin.site.site_title = _("Flash Sale")


def _pieces(**options: Any) -> forms.IntegerField:
    limits = [MinValueValidator(1), MaxValueValidator(MAX_PIECES)]
    return forms.IntegerField(label=_("pieces"), validators=limits, **options)


class NewSaleForm(forms.ModelForm):  # type: ignore[type-arg]
    """A sale and how many pieces are set aside for it."""

    quantity = _pieces()
    fulfilment = forms.ChoiceField(
        label=_("fulfilment"), choices=Sale.Fulfilment.choices, required=False
    )

    class Meta:
        model = Sale
        fields = (
            "product",
            "slug",
            "price",
            "limit_per_customer",
            "opens_at",
            "closes_at",
            "fulfilment",
        )

    def clean_fulfilment(self) -> str:
        """Direct, unless somebody chose otherwise."""
        return self.cleaned_data["fulfilment"] or Sale.Fulfilment.DIRECT


class RestockForm(ActionForm):
    """The actions of the list of sales, with a number for restocking."""

    pieces = _pieces(required=False, initial=10)


@admin.register(Sale)
class SaleAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Made once with its stock; later only its times and its limit change."""

    list_display = ("slug", "product", "price", "left", "phase", "opens_at", "closes_at")
    list_select_related = ("product", "stock")
    search_fields = ("slug", "product__name", "product__name_zh")
    action_form = RestockForm
    actions = ("restock",)
    list_filter = ("fulfilment",)
    fixed = ("product", "slug", "price", "stock", "fulfilment")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody: orders and ledger refer to it."""
        return False

    def get_form(
        self, request: HttpRequest, obj: Sale | None = None, change: bool = False, **kwargs: Any
    ) -> Any:
        """The pieces are asked for once."""
        if obj is None:
            kwargs["form"] = NewSaleForm
        return super().get_form(request, obj, change, **kwargs)

    def get_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """In the order of a sale's life."""
        new = ("product", "slug", "price", "quantity", "fulfilment")
        first = new if obj is None else self.fixed
        return (*first, "limit_per_customer", "opens_at", "closes_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Orders carry the price, the ledger the stock."""
        return () if obj is None else self.fixed

    def save_model(self, request: HttpRequest, obj: Sale, form: Any, change: bool) -> None:
        """A new sale comes with its stock and the first row of its ledger."""
        if change:
            super().save_model(request, obj, form, change)
        else:
            obj.pk = create_sale(**form.cleaned_data).pk

    @admin.display(description=_("left"), ordering="stock__quantity")
    def left(self, sale: Sale) -> int:
        """Pieces that nobody has taken."""
        return sale.stock.quantity

    @admin.display(description=_("phase"))
    def phase(self, sale: Sale) -> str:
        """By the server's clock."""
        return str(sale.phase().label)

    @admin.action(description=_("Restock by this many pieces"), permissions=["change"])
    def restock(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Add pieces to each chosen sale, also while it runs."""
        try:
            pieces = _pieces().clean(request.POST.get("pieces"))
        except forms.ValidationError as error:
            self.message_user(request, "; ".join(error.messages), messages.ERROR)
            return
        with transaction.atomic():
            for sale in sales:
                stock.restock(stock_id=sale.stock_id, quantity=pieces)
                if sale.is_queued:
                    transaction.on_commit(partial(reconcile_soon, sale=sale))
                self.log_change(request, sale, f"Restocked by {pieces}.")
        done = ngettext("%d sale restocked.", "%d sales restocked.", len(sales)) % len(sales)
        self.message_user(request, done, messages.SUCCESS)


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    """Orders, to look at: their steps belong to the customer and the clock."""

    list_display = ("number", "customer", "sale", "quantity", "unit_price", "status", "created_at")
    list_filter = ("status", "sale__product")
    list_select_related = ("customer", "sale__product")
    search_fields = ("number", "customer__username")
    show_full_result_count = False


@admin.register(SetAside)
class SetAsideAdmin(ReadOnlyAdmin):
    """Reservations of queued sales that did not become orders, and why."""

    list_display = ("number", "sale", "customer_id", "quantity", "reason", "created_at")
    list_filter = ("reason", "sale")
    list_select_related = ("sale__product",)
    search_fields = ("number", "customer_id", "detail")
    show_full_result_count = False


@admin.register(Payment)
class PaymentAdmin(ReadOnlyAdmin):
    """Payments, to look at: the payment service decides them."""

    list_display = ("reference", "order", "amount", "status", "created_at", "closed_at")
    list_filter = ("status",)
    list_select_related = ("order",)
    search_fields = ("reference", "order__number")
    show_full_result_count = False
