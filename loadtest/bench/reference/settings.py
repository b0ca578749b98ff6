"""The shop's settings, with the URLs of the reference implementations before the shop's."""

from shop.settings.lab import *  # noqa: F403
from shop.settings.lab import MIDDLEWARE

ROOT_URLCONF = "loadtest.bench.reference.urls"
_shop = MIDDLEWARE.index("shop.web.purchase.PurchaseTokenMiddleware")
MIDDLEWARE.insert(_shop, "loadtest.bench.reference.units.units_middleware")
