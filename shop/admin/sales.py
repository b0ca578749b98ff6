"""Sales in the admin: created with their stock, corrected, opened, closed and duplicated."""

from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from itertools import chain, count
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ActionForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.timezone import localtime
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop, ngettext

from inventory.admin import KeepingForm
from inventory.queries import stocked
from locking.admin import confirm
from shop.admin.sale_pages import SalePages
from shop.administration.history import entry
from shop.administration.sale_management import (
    close_now,
    fixed_fields,
    open_now,
    restock_sale,
    unlist,
)
from shop.mail.service import remind_again
from shop.models import Sale
from shop.sales.queries import create_sale
from shop.templatetags.shop import money

MAX_UNITS = 1_000_000
PARTS = (_("Date"), _("Time"))
YEARS = range(2000, 2100)
"""At the ends of the calendar, a conversion to UTC or an addition would fail."""


def units_field(**options: Any) -> forms.IntegerField:
    """Return a field for a number of units to add to a stock or to remove."""
    return forms.IntegerField(min_value=1, max_value=MAX_UNITS, **{"label": _("Units"), **options})


def free_slug(wanted: str) -> str:
    """Return `wanted`, or with the first number that no sale's address has; case is ignored."""
    names = chain([wanted], (f"{wanted[:45]}-{number}" for number in count(2)))
    return next(name for name in names if not Sale.objects.filter(slug__iexact=name).exists())


class SaleForm(KeepingForm):
    """The fields of a sale that staff can change after its creation."""

    class Meta:
        model = Sale
        fields: tuple[str, ...] = ()  # chosen by the admin
        help_texts = {
            "price": _("At most the regular price. No changes in the minute before the opening."),
            "amount": _("No changes in the minute before the opening."),
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
        """Refuse wrong times, a price above the regular one, and what is fixed by now."""
        super().clean()
        for name in ("opens_at", "closes_at"):
            if (when := self.cleaned_data.get(name)) and when.year not in YEARS:
                self.add_error(name, _("Choose a time between 2000 and 2099."))
        opens_at, closes_at = map(self.cleaned_data.get, ("opens_at", "closes_at"))
        if opens_at and closes_at and closes_at <= opens_at:
            self.add_error("closes_at", _("The sale must end after it opens."))
        elif closes_at and "closes_at" in self.changed_data and closes_at <= timezone.now():
            self.add_error("closes_at", self.in_the_past)
        price, product = self.cleaned_data.get("price"), self.cleaned_data.get("product")
        if price == 0:
            self.add_error("price", _("The price must be above 0."))
        product = product or getattr(self.instance, "product", None)
        if product and price and "price" in self.changed_data and price > product.price:
            problem = _("The sale price is above the regular price of %s.") % money(product.price)
            self.add_error("price", problem)
        if self.instance.pk:
            for name in fixed_fields(sale=self.instance, keep=True) & set(self.changed_data):
                self.add_error(name, _("It is too late to change this."))
        return self.cleaned_data

    in_the_past = _("This time has passed. To end the sale, use “End now” in the list of sales.")


class NewSaleForm(SaleForm):
    """A new sale and the units of its stock."""

    quantity = units_field(label=_("Units in stock"), help_text=_("You can change it later."))
    in_the_past = _("The sale would have ended already. Choose a time in the future.")

    class Meta(SaleForm.Meta):
        help_texts = {
            **SaleForm.Meta.help_texts,
            "product": _("Customers can see neither an unlisted product nor its sale."),
            "slug": _("Last part of the page's address. If empty, the product's slug is used."),
            "fulfilment": _(
                "Direct suits most sales. Queued serves more buyers per second; each order is"
                " created within seconds of its reservation."
            ),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["slug"].required = False

    def clean(self) -> dict[str, Any]:
        """Fill in the address."""
        sent = super().clean()
        if "product" in sent and "slug" in sent and not sent["slug"]:
            sent["slug"] = free_slug(sent["product"].slug)
        return sent


class StockForm(ActionForm):
    """The actions on sales, with the number of units to add or to remove."""

    # Any text, which `_units` explains: Django would say that no action was selected.
    units = forms.CharField(label=_("Units"), required=False, initial=10, widget=forms.NumberInput)


class SaleAdmin(SalePages):
    """Sales, created with their stock, and corrected until they open."""

    list_display = (
        "slug",
        "product",
        "amount",
        "left",
        "phase",
        "opens_at",
        "closes_at",
        "processing",
    )
    list_select_related = ("product", "stock")
    list_per_page = list_max_show_all = 25
    ordering = ("-opens_at", "-pk")
    search_fields = ("slug", "product__name", "product__name_zh")
    form = SaleForm
    action_form = StockForm
    actions = ("restock", "reduce", "open_now", "close_now", "unlist", "clone")

    def has_change_permission(self, request: HttpRequest, obj: Sale | None = None) -> bool:
        """Leave an unlisted sale as it is."""
        return super().has_change_permission(request, obj) and (obj is None or obj.is_listed)

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
        stock = "quantity" if obj is None else "stock"
        can_change = obj is None or self.has_change_permission(request, obj)
        price = "price" if can_change and "amount" not in self._fixed(request, obj) else "amount"
        return (
            (_("Offer"), {"fields": ("product", "slug", price, "limit_per_customer", stock)}),
            (_("Opening times"), {"fields": ("opens_at", "closes_at")}),
            (_("Order processing"), {"fields": ("fulfilment",)}),
        )

    def get_readonly_fields(self, request: HttpRequest, obj: Sale | None = None) -> Any:
        """Make read-only what orders and the ledger refer to, and what it is too late to change."""
        fixed = ("product", "slug", "stock", "fulfilment")
        return () if obj is None else (*fixed, *self._fixed(request, obj))

    def _fixed(self, request: HttpRequest, obj: Sale | None) -> set[str]:
        """Return what the page shows as fixed; what an older page sends gets an error instead."""
        if obj is None:
            return set()
        sent = {name.removesuffix("_0") for name in request.POST}
        fixed = fixed_fields(sale=obj) - sent
        return {"amount" if name == "price" else name for name in fixed}

    def save_model(self, request: HttpRequest, obj: Sale, form: Any, change: bool) -> None:
        """Save the changed fields, or create a sale with its stock and ledger."""
        if change:
            # Other fields may have changed since, e.g. when a queued sale was loaded.
            obj.save(update_fields=form.changed_data)
            if "opens_at" in form.changed_data:
                remind_again(sale=obj)
        else:
            obj.pk = create_sale(**form.cleaned_data).pk

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        """Propose the next full hour; with ?clone=<pk>, copy that sale and its duration."""
        opens_at = localtime().replace(minute=0, second=0, microsecond=0)
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

    @admin.display(description=_("phase"))
    def phase(self, sale: Sale) -> str:
        """Return the current phase, or that customers no longer find the sale."""
        return str(sale.phase().label if sale.is_listed else _("Unlisted"))

    @admin.display(description=_("price"), ordering="price")
    def amount(self, sale: Sale) -> str:
        """Return the price with the currency."""
        return money(sale.price)

    @admin.display(description=_("order processing"), ordering="fulfilment")
    def processing(self, sale: Sale) -> str:
        """Return how orders are written, in a word."""
        return str(_("Queued") if sale.is_queued else _("Direct"))

    @admin.action(description=_("Add stock"), permissions=["change"])
    def restock(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Add units to the stock of each selected sale, even while it is open."""
        if units := self._units(request):
            step = partial(restock_sale, quantity=units)
            log_entry = entry(gettext_noop("Units added: {units}."), units=units)
            done = ngettext("%%s: %d unit added.", "%%s: %d units added.", units) % units
            self.each(request, sales, step, log_entry, done)

    @admin.action(description=_("Reduce stock"), permissions=["change"])
    def reduce(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Remove unsold units from each selected sale, once its name has been typed."""
        if not (units := self._units(request)):
            return None
        text = ngettext(
            "Unsold units that are removed from this sale: %d.",
            "Unsold units that are removed from each of these sales: %d.",
            len(sales),
        )
        step = partial(restock_sale, quantity=-units)
        refusal = _("%s: nothing was removed, because fewer units are unsold.")
        log_entry = entry(gettext_noop("Units removed: {units}."), units=units)
        said = ngettext("%%s: %d unit removed.", "%%s: %d units removed.", units) % units
        done = log_entry, said, refusal
        if all(sale.left < units for sale in sales):
            return self.each(request, sales, lambda sale: False, *done)
        return self._ask(request, list(sales), _("Reduce stock"), text % units, step, *done)

    def _units(self, request: HttpRequest) -> int:
        """Return the units of an action; 0, after a message, if they are no valid number."""
        try:
            return int(units_field().clean(request.POST.get("units")))
        except forms.ValidationError as error:
            text = {"label": _("Units"), "error": "; ".join(error.messages)}
            self.message_user(request, _("%(label)s: %(error)s") % text, messages.ERROR)
            return 0

    @admin.action(description=_("Open now"), permissions=["change"])
    def open_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> None:
        """Open the selected sales that have not opened yet."""
        refusal = _("%s has already opened or ended.")
        log_entry = entry(gettext_noop("Opened."))
        self.each(request, sales, open_now, log_entry, _("%s is open."), refusal)

    @admin.action(description=_("End now"), permissions=["change"])
    def close_now(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """End the selected sales that are open, once their name or number has been typed."""
        running = [sale for sale in sales if sale.phase() in (Sale.Phase.OPEN, Sale.Phase.SOLD_OUT)]
        log_entry = entry(gettext_noop("Ended."))
        step = close_now, log_entry, _("%s has ended."), _("%s is not open.")
        if not running:
            return self.each(request, sales, *step)
        text = _(
            "No one will be able to buy. Orders already placed stay valid and can still be paid."
        )
        return self._ask(request, running, _("End now"), text, *step)

    @admin.action(description=_("Unlist"), permissions=["change"])
    def unlist(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Unlist the selected sales that have ended, or have not opened and then never will."""
        text = ngettext(
            "The shop will no longer list this sale. If it has not opened, it never will. Orders"
            " stay valid.",
            "The shop will no longer list these sales. One that has not opened never will. Orders"
            " stay valid.",
            len(sales),
        )
        times = {
            sale.pk: {
                "opens": f"{localtime(sale.opens_at):%F %T}",
                "closes": f"{localtime(sale.closes_at):%F %T}",
            }
            for sale in sales
        }  # which a cancelled sale loses
        said = gettext_noop("Unlisted. Its times were {opens} to {closes}.")
        done = (lambda sale: entry(said, **times[sale.pk])), _("%s is unlisted.")
        refusal = _("%s is open, or about to open. End it first.")
        title = _("Unlist")
        return self._ask(request, list(sales), title, text, unlist, *done, refusal)

    def _ask(
        self,
        request: HttpRequest,
        sales: Sequence[Sale],
        title: Promise,
        text: str | Promise,
        *step: Any,
    ) -> HttpResponse | None:
        """Take a step with each sale once its name, or the number of sales, has been typed."""
        shown = {"sales": sales, "title": title, "text": text}
        name = sales[0].slug if len(sales) == 1 else str(len(sales))
        asked = confirm(request, self, "admin/shop/sale/confirm.html", name=name, **shown)
        return asked or self.each(request, sales, *step)

    def name_of(self, row: Sale) -> str:
        """Return the product and the last part of the page's address."""
        return f"{row.product.title} ({row.slug})"

    @admin.action(description=_("Duplicate sale"), permissions=["add"])
    def clone(self, request: HttpRequest, sales: QuerySet[Sale]) -> HttpResponse | None:
        """Open the form of a new sale with the values of the selected one."""
        if len(sales) != 1:
            self.message_user(request, _("Select one sale to duplicate."), messages.ERROR)
            return None
        return redirect(f"{reverse('admin:shop_sale_add')}?clone={sales[0].pk}")
