"""Django application of the shop."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    """The shop: catalogue, sales, orders and pages."""

    name = "shop"
    verbose_name = _("Shop")

    def ready(self) -> None:
        """Refuse demo secrets in production; connect signals of rows and processes."""
        from shop.catalogue.page_cache import connect_invalidation
        from shop.operations.rates import connect_processes
        from shop.purchase.tokens import connect_revocation
        from shop.settings.checks import refuse_insecure_settings

        refuse_insecure_settings()
        connect_invalidation()
        connect_revocation()
        connect_processes()
