"""Admin pages: products can be edited; stock and its ledger are read-only."""

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest

from inventory.models import Product, Stock, StockMovement
from locking.admin import LargeTable, ReadOnlyAdmin


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Products of the catalogue; one that was ever on sale can be hidden but not deleted."""

    list_display = ("name", "name_zh", "price", "is_listed")
    list_editable = ("is_listed",)
    list_per_page = 25
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
class StockMovementAdmin(LargeTable, ReadOnlyAdmin):
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
    search_fields = ("order_number",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[StockMovement]:
        """Read the products of the rows that are shown."""
        return super().get_queryset(request).prefetch_related("stock__product")
