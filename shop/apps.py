"""Sales, orders and the pages."""

from django.apps import AppConfig, apps
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    """The storefront."""

    name = "shop"
    verbose_name = _("Shop")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Refuse what only the demo may; let pages see what staff change, in their language."""
        from shop.checks import refuse_the_demos
        from shop.labels import translate_labels
        from shop.shared import forget_what_staff_change

        refuse_the_demos()
        forget_what_staff_change()
        translate_labels(apps.get_models())
