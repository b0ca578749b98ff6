"""Sales in the admin: created with their stock, restocked, opened, closed and duplicated."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import chain, count
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from inventory.exceptions import OutcomeUnknown
from inventory.queries import stocked
from locking.admin import confirm
from shop.administration.sale_management import close_now, open_now, restock_sale
from shop.errors import Overloaded
from shop.models import Sale
from shop.sales.queries import create_sale
from shop.templatetags.shop import zone

FULFILMENTS = {"direct": _("direct"), "queued": _("queued")}
MAX_UNITS = 1_000_000
PARTS = (_("Date"), _("Time"))
YEARS = range(2000, 2100)
"""At the ends of the calendar, a conversion to UTC or an addition would fail."""


def units_field(**options: Any) -> forms.IntegerField:
    """Return a field for a number of units to add to a stock."""
    limits = [MinValueValidator(1), MaxValueValidator(MAX_UNITS)]
    return forms.IntegerField(validators=limits, **{"label": _("Units"), **options})


def free_slug(wanted: str) -> str:
    """Return `wanted`, or with the first number that no sale's address has; case is ignored."""
    base = wanted[:45]
    slugs = Sale.objects.filter(slug__istartswith=base).values_list("slug", flat=True)
    taken = {slug.lower() for slug in slugs}
    names = chain([wanted], (f"{base}-{number}" for number in count(2)))
    return next(name for name in names if name.lower() not in taken)


class SaleForm(forms.ModelForm):  # type: ignore[type-arg]
    """The fields of a sale that staff can change after its creation."""

    class Meta:
        model = Sale
        fields: tuple[str, ...] = ()  # chosen by the admin
        help_texts = {
            "limit_per_customer": _("The most units that one customer can buy in this sale."),
            "opens_at": _("Customers can see the page earlier, and buy from this time on."),
            "closes_at": _("Orders placed before this time keep their full time to pay."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("opens_at", "closes_at"):
            if name in self.fields:  # Django labels neither of the two inputs
                for widget, part in zip(self.fields[name].widget.widgets, PARTS, strict=True):
                    widget.attrs["aria-label"] = f"{self.fields[name].label} – {part}"

    def clean(self) -> dict[str, Any]:
        """Refuse other centuries, times in the wrong order, and an end that was set to the past."""
        super().clean()
        for name in ("opens_at", "closes_at"):
            if (when := self.cleaned_data.get(name)) and when.year not in YEARS:
                self.add_error(name, _("Choose a time between 2000 and 2099."))
        opens_at, closes_at = map(self.cleaned_data.get, ("opens_at", "closes_at"))
        if opens_at and closes_at and closes_at <= opens_at:
            self.add_error("closes_at", _("The sale must close after it opens."))
        elif closes_at and "closes_at" in self.changed_data and closes_at <= timezone.now():
            self.add_error("closes_at", self.in_the_past)
        return self.cleaned_data

    in_the_past = _("This time has passed. To end the sale, use “Close now” in the list of sales.")


class NewSaleForm(SaleForm):
    """A new sale and the units of its stock."""

    quantity = units_field(
        label=_("Units in stock"), help_text=_("You can add more later, but not remove any.")
    )
    in_the_past = _("The sale would already be over. Choose a time in the future.")

    class Meta(SaleForm.Meta):
        help_texts = {
            **SaleForm.Meta.help_texts,
            "product": _("Customers can see neither an unlisted product nor its sale."),
            "slug": _("Last part of the page's address. If empty, the product's slug is used."),
            "price": _("The price during the sale, at most the regular price."),
            "fulfilment": _(
                "Direct suits most sales. Queued serves more buyers per second; each order is"
                " created within seconds of its reservation."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["slug"].required = False

    def clean(self) -> dict[str, Any]:
        """Fill in the address, and refuse a price above the regular price."""
        sent = super().clean()
        product, price = sent.get("product"), sent.get("price")
        if product and "slug" in sent and not sent["slug"]:
            sent["slug"] = free_slug(product.slug)
        if product and price is not None and price > product.price:
            problem = _("The sale price is above the regular price of ¥%s.") % product.price
            self.add_error("price", problem)
        return sent


class StockForm(ActionForm):
    """The actions on sales, with the number of units to add."""

    units = units_field(required=False, initial=10)


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
    form = SaleForm
    action_form = StockForm
    actions = ("restock", "open_now", "close_now", "clone")
    list_filter = ("fulfilment", "opens_at", "closes_at")

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

    def get_fieldsets(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Return the fields in the order in which staff decide on them."""
        stock = ("quantity",) if obj is None else ("stock",)
        zone_note = _("All times are %s.") % zone(timezone.now())
        return (
            (_("Offer"), {"fields": ("product", "slug", "price", "limit_per_customer", *stock)}),
            (_("Opening times"), {"fields": ("opens_at", "closes_at"), "description": zone_note}),
            (_("Order processing"), {"fields": ("fulfilment",)}),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Make what orders and the ledger refer to read-only."""
        fixed = ("product", "slug", "price", "stock", "fulfilment")
        return () if obj is None else fixed

    def save_model(self, request: HttpRequest, obj: Sale, form: Any, change: bool) -> None:
        """Save the changed fields, or create a sale with its stock and ledger."""
        if change:
            # Other fields may have changed since, e.g. when a queued sale was loaded.
            obj.save(update_fields=form.changed_data)
        else:
            obj.pk = create_sale(**form.cleaned_data).pk

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Propose the next full hour; with ?clone=<pk>, copy that sale and its duration."""
        opens_at = timezone.localtime().replace(minute=0, second=0, microsecond=0)
        opens_at += timedelta(hours=1)
        times = {"opens_at": opens_at, "closes_at": opens_at + timedelta(hours=1)}
        number = request.GET.get("clone", "")
        sale = self.get_object(request, number) if number else None
        if sale is None:
            # Django's form fails with 500 for a time as text, so the query sets no times.
            return {**super().get_changeform_initial_data(request), **times}
        return {
            **forms.model_to_dict(sale),
            "slug": free_slug(sale.slug),
            "quantity": stocked(stock_id=sale.stock_id),
            "opens_at": opens_at,
            "closes_at": opens_at + (sale.closes_at - sale.opens_at),
        }

    def view_on_site(self, obj: Sale) -> str | None:
        """Return the path of the sale page; a product that is not listed has none."""
        return obj.get_absolute_url() if obj.product.is_listed else None

    @admin.display(description=_("fulfilment"), ordering="fulfilment")
    def fulfilment_name(self, sale: Sale) -> str:
        """Return the fulfilment in one word; the list's filter explains it."""
        return str(FULFILMENTS[sale.fulfilment])

    @admin.display(description=_("phase"))
    def phase(self, sale: Sale) -> str:
        """Return the current phase."""
        return str(sale.phase().label)

    @admin.action(description=_("Add stock"), permissions=["change"])
    def restock(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Add units to the stock of each selected sale, even while it is open."""
        try:
            units = units_field().clean(request.POST.get("units"))
        except forms.ValidationError as error:
            self.message_user(request, "; ".join(error.messages), messages.ERROR)
            return
        step = partial(restock_sale, quantity=units)
        self._each(request, sales, step, f"Restocked by {units}.", _("%s: stock added."))

    @admin.action(description=_("Open now"), permissions=["change"])
    def open_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Open the selected sales that have not opened yet."""
        refusal = _("%s has already opened or ended.")
        self._each(request, sales, open_now, "Opened.", _("%s is open."), refusal)

    @admin.action(description=_("Close now"), permissions=["change"])
    def close_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Close the selected sales that are open, once their name or number has been typed."""
        running = [sale for sale in sales if sale.phase() in (Sale.Phase.OPEN, Sale.Phase.SOLD_OUT)]
        name = running[0].slug if len(running) == 1 else str(len(running))
        template = "admin/shop/sale/close.html"
        if running and (asked := confirm(request, self, template, name=name, running=running)):
            return asked
        self._each(request, sales, close_now, "Closed.", _("%s has ended."), _("%s is not open."))
        return None

    def _each(
        self,
        request: HttpRequest,
        sales: QuerySet[Sale],
        step: Callable[..., bool | None],
        log_entry: str,
        done: str | Promise,
        refusal: str | Promise = "",
    ) -> None:
        for sale in sales:
            try:
                problem = refusal % sale.slug if step(sale=sale) is False else ""
            except Overloaded as error:
                problem = f"{sale.slug}: {error.title}"
            except OutcomeUnknown:
                problem = _("%s: no reply. Check the stock before you try again.") % sale.slug
            if problem:
                self.message_user(request, problem, messages.ERROR)
            else:
                self.log_change(request, sale, log_entry)
                self.message_user(request, done % sale.slug, messages.SUCCESS)

    @admin.action(description=_("Duplicate sale"), permissions=["add"])
    def clone(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Open the form of a new sale with the values of the selected one."""
        if len(sales) != 1:
            self.message_user(request, _("Select one sale to duplicate."), messages.ERROR)
            return None
        return redirect(f"{reverse('admin:shop_sale_add')}?clone={sales[0].pk}")
