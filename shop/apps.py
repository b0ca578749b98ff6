"""Django application of the shop."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    """The shop: catalogue, sales, orders and pages."""

    name = "shop"
    verbose_name = _("Shop")

    def ready(self) -> None:
        """Refuse demo secrets in production; guard the database; connect signals."""
        from shop.catalogue.page_cache import connect_invalidation
        from shop.operations.rates import connect_processes
        from shop.platform.database import guard_connections
        from shop.purchase.tokens import connect_revocation
        from shop.settings.checks import refuse_insecure_settings

        refuse_insecure_settings()
        guard_connections()
        connect_invalidation()
        connect_revocation()
        connect_processes()
