"""Products for staff to edit; stock and its ledger to read."""

from django.contrib import admin

from inventory.models import Product, Stock, StockMovement
from locking.admin import ReadOnlyAdmin


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """What the catalogue shows. Products that were ever on sale are hidden, not deleted."""

    list_display = ("name", "name_zh", "price", "is_listed")
    list_editable = ("is_listed",)
    list_filter = ("is_listed",)
    search_fields = ("name", "name_zh", "slug")
    prepopulated_fields = {"slug": ("name",)}


@admin.register(Stock)
class StockAdmin(ReadOnlyAdmin):
    """The rows that the locks guard."""

    list_display = ("product", "quantity", "fence_epoch", "fence_token", "stale_writes_refused")
    list_select_related = ("product",)
    search_fields = ("product__name", "product__name_zh", "product__slug")


@admin.register(StockMovement)
class StockMovementAdmin(ReadOnlyAdmin):
    """The ledger."""

    list_display = (
        "pk",
        "created_at",
        "stock",
        "delta",
        "reason",
        "order_number",
        "quantity_after",
        "fence_epoch",
        "fence_token",
    )
    list_filter = ("reason", "created_at", "stock__product")
    list_select_related = ("stock__product",)
    search_fields = ("order_number",)
    show_full_result_count = False
