"""What programs read: the sales as JSON, and the description of the public endpoints.

The same for all viewers. Purchases, orders and reservations are JSON at the URLs of their pages.
"""

from typing import Any

from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse

from shop.catalogue.page_cache import get_cached_home, get_cached_sale
from shop.models import Sale
from shop.web.decorators import live_page, public_page

DESCRIPTION = settings.BASE_DIR / "docs/reference/openapi.json"


@live_page
def sales(request: HttpRequest) -> HttpResponse:
    """Return the sales of the home page: live, upcoming and past."""
    found = [_sale(one) for group in get_cached_home().values() for one in group]
    return JsonResponse({"sales": found})


@live_page
def stock(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the units of a sale that can still be bought. Raise NotFound."""
    seen = get_cached_sale(slug=slug)
    as_of = seen.as_of.isoformat(timespec="milliseconds")
    phase, left = seen.sale.phase(), seen.sale.left
    return JsonResponse({"phase": phase, "left": left, "initial": seen.stocked, "as_of": as_of})


@public_page
def description(request: HttpRequest) -> FileResponse:
    """Return the OpenAPI description; tests/shop/web/test_api.py compares it with the views."""
    return FileResponse(DESCRIPTION.open("rb"), content_type="application/json")


def _sale(sale: Sale) -> dict[str, Any]:
    return {
        "slug": sale.slug,
        "url": sale.get_absolute_url(),
        "title": sale.product.title,
        "price": str(sale.price),
        "currency": settings.CURRENCY,
        "limit_per_customer": sale.limit_per_customer,
        "opens_at": sale.opens_at.isoformat(timespec="milliseconds"),
        "closes_at": sale.closes_at.isoformat(timespec="milliseconds"),
        "fulfilment": sale.fulfilment,
        "phase": sale.phase(),
        "left": sale.left,
    }
