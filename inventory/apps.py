"""The Django application `inventory`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class InventoryConfig(AppConfig):
    """Register products, stock rows and their ledger."""

    name = "inventory"
    verbose_name = _("Inventory")
