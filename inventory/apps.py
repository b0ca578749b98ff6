"""Products and stock."""

from django.apps import AppConfig


class InventoryConfig(AppConfig):
    """Products, the stock rows and their ledger."""

    name = "inventory"
    default_auto_field = "django.db.models.BigAutoField"
