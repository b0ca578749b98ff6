"""Sales, orders and the pages."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The storefront."""

    name = "shop"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let pages see what staff change."""
        from shop.shared import forget_what_staff_change

        forget_what_staff_change()
