"""Sales, orders and the pages."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The storefront."""

    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"
