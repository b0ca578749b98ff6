"""Admin pages: products can be edited; stock and its ledger are read-only."""

from django.contrib import admin

from inventory.models import Product, Stock, StockMovement
from locking.admin import ReadOnlyAdmin


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Products of the catalogue; one that was ever on sale can be hidden but not deleted."""

    list_display = ("name", "name_zh", "price", "is_listed")
    list_editable = ("is_listed",)
    list_filter = ("is_listed",)
    search_fields = ("name", "name_zh", "slug")
    prepopulated_fields = {"slug": ("name",)}


@admin.register(Stock)
class StockAdmin(ReadOnlyAdmin):
    """Stock rows, which the locks guard."""

    list_display = ("product", "quantity", "fence_epoch", "fence_token", "stale_writes_refused")
    list_select_related = ("product",)
    search_fields = ("product__name", "product__name_zh", "product__slug")


@admin.register(StockMovement)
class StockMovementAdmin(ReadOnlyAdmin):
    """The ledger of all stock movements."""

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
