"""The forms of sales in the admin."""

from itertools import count
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.core.validators import MaxValueValidator, MinValueValidator
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from shop.models import Sale

MAX_UNITS = 1_000_000
PARTS = (_("Date"), _("Time"))


def units_field(**options: Any) -> forms.IntegerField:
    """Return a field for a number of units to add to a stock."""
    limits = [MinValueValidator(1), MaxValueValidator(MAX_UNITS)]
    return forms.IntegerField(validators=limits, **{"label": _("Units"), **options})


def free_slug(wanted: str) -> str:
    """Return `wanted`, or with the first number that no sale's address has; case is ignored."""
    base = wanted[:45]
    slugs = Sale.objects.filter(slug__istartswith=base).values_list("slug", flat=True)
    taken = {slug.lower() for slug in slugs}
    numbered = (f"{base}-{number}" for number in count(2))
    return wanted if wanted.lower() not in taken else next(s for s in numbered if s not in taken)


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
        """Refuse times in the wrong order, and an end that was set to the past."""
        super().clean()
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
