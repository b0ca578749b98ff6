"""Admin pages: products can be edited; stock and its ledger are read-only."""

from functools import partial
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db import models, transaction
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from inventory.models import Product, Stock, StockMovement
from inventory.money import with_sign
from inventory.pictures import PictureField
from locking.admin import LargeTable, ReadOnlyAdmin


class KeepingForm(forms.ModelForm):  # type: ignore[type-arg]
    """Saves what its reader changed: another page may have saved other fields since.

    The page says what it showed. A form without that, sent by a program, saves all its fields.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        told = self.add_initial_prefix("")
        is_told = self.is_bound and any(name.startswith(told) for name in self.data)
        if is_told:
            # Django looks for a name without _0 before it repeats what two inputs showed.
            sent: Any = self.data  # a QueryDict, or a dict
            self.data = sent = sent.copy()
            for name, field in self.fields.items():
                if not isinstance(field, forms.ModelMultipleChoiceField):
                    sent.setdefault(self.add_initial_prefix(name), "")
        for field in self.fields.values():
            may_tell = not (field.disabled or isinstance(field, forms.FileField))
            is_asked = is_told or not self.is_bound
            field.show_hidden_initial = bool(self.instance.pk and may_tell and is_asked)

    def clean(self) -> dict[str, Any]:
        """Take the newer values of the fields that the reader left alone."""
        super().clean()
        if self.instance.pk:
            for name in self.cleaned_data.keys() - set(self.changed_data):
                value = getattr(self.instance, name)
                self.cleaned_data[name] = value.all() if hasattr(value, "all") else value
        return self.cleaned_data


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Products of the catalogue; one that was ever on sale can be hidden but not deleted."""

    form = KeepingForm
    list_display = ("name", "name_zh", "amount", "is_listed")
    fieldsets = (
        (None, {"fields": (("name", "name_zh"), "slug", "price", "is_listed")}),
        (capfirst(_("picture")), {"fields": ("preview", "photo")}),
        (capfirst(_("description")), {"fields": ("description", "description_zh")}),
    )
    readonly_fields = ("preview",)
    formfield_overrides = {models.FileField: {"form_class": PictureField}}
    list_editable = ("is_listed",)
    list_per_page = 25
    list_filter = ("is_listed",)
    search_fields = ("name", "name_zh", "slug")
    prepopulated_fields = {"slug": ("name",)}

    def get_changelist_form(self, request: HttpRequest, **kwargs: Any) -> Any:
        """Return the form of a row of the list."""
        return super().get_changelist_form(request, form=KeepingForm, **kwargs)

    @admin.display(description=_("price"), ordering="price")
    def amount(self, product: Product) -> str:
        """Return the regular price with the currency."""
        return with_sign(product.price, settings.CURRENCY)

    @admin.display(description=_("Customers see"))
    def preview(self, product: Product) -> str:
        """Return the picture that pages show, or a dash."""
        shown = '<img class="preview" src="{}" alt="" width="160" height="160">'
        return format_html(shown, product.photo.url) if product.photo else "–"

    def save_model(self, request: HttpRequest, obj: Product, form: Any, change: bool) -> None:
        """Save the product, and delete a photo that was replaced or removed."""
        old = str(form.initial.get("photo") or "") if "photo" in form.changed_data else ""
        super().save_model(request, obj, form, change)
        if old:
            transaction.on_commit(partial(obj.photo.storage.delete, old))


@admin.register(Stock)
class StockAdmin(ReadOnlyAdmin):
    """Stock rows, which the locks guard."""

    list_display = ("product", "quantity", "fence_epoch", "fence_token", "stale_writes_refused")
    list_select_related = ("product",)
    search_fields = ("product__name", "product__name_zh", "product__slug")


@admin.register(StockMovement)
class StockMovementAdmin(LargeTable, ReadOnlyAdmin):
    """The ledger of all stock movements."""

    list_display = (
        "id",
        "created_at",
        "product",
        "delta",
        "cause",
        "order_number",
        "fence_epoch",
        "fence_token",
    )
    fields = (*list_display[1:], "quantity_after")
    search_fields = ("order_number",)
    shown_with = ("stock__product",)

    @admin.display(description=_("product"))
    def product(self, movement: StockMovement) -> Product:
        """Return the product; the stock row would say what is left now."""
        return movement.stock.product
