"""The page of a reservation in a queued sale, polled until the order is written or refused."""

import random
from typing import Any

from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _

from shop.errors import wants_json
from shop.reservations.reserve import ReservationStatus, reservation_status
from shop.sales.purchase_request import why_limited
from shop.web.decorators import CustomerRequest, customer_page

FIRST_MS, LONGEST_MS = 500, 5000
"""The first and the longest pause between two polls, in milliseconds."""
# The same texts for a refusal by Redis and by the database.
_TEXTS = {
    "sold_out": (
        _("Sorry, it sold out"),
        _("You haven't been charged. More may become available if orders expire or are cancelled."),
    ),
    "failed": (
        _("We couldn't create your order"),
        _("You haven't been charged. You can try again on the sale page."),
    ),
    "lost": (
        _("We lost your reservation"),
        _(
            "A server failed before your order was saved. You haven't been charged."
            " Please try again."
        ),
    ),
}


@customer_page
def reservation(request: CustomerRequest, token: str) -> HttpResponse:
    """Show the reservation; redirect to its order, or explain why there will be none."""
    status = reservation_status(customer_id=request.user.pk, token=token)
    if wants_json(request):
        return JsonResponse({"status": status.status, "order": status.order_url})
    if request.headers.get("HX-Request"):
        return _polled(request, status)
    if status.order_url:
        return redirect(status.order_url)
    return render(request, "shop/reservation.html", _context(status, FIRST_MS))


def _polled(request: CustomerRequest, status: ReservationStatus) -> HttpResponse:
    if status.order_url:
        return HttpResponse(headers={"HX-Redirect": status.order_url})
    try:
        waited = min(LONGEST_MS, max(FIRST_MS, int(request.GET.get("waited", ""))))
    except ValueError:
        waited = FIRST_MS
    return render(
        request, "shop/_reservation_status.html", _context(status, min(LONGEST_MS, waited * 3 // 2))
    )


def _context(status: ReservationStatus, poll_ms: int) -> dict[str, Any]:
    title, advice = _TEXTS.get(status.status, (None, None))
    if status.status == "limit":
        customer_id = status.reservation.customer_id
        limit = why_limited(sale_id=status.sale.pk, customer_id=customer_id)
        title, advice = limit.title, limit.advice
    return {
        "status": status,
        "sale": status.sale,
        "title": title,
        "advice": advice,
        "next_ms": poll_ms,
        # Spread at random, so that reservations of the same second poll at different times.
        "poll_ms": round(poll_ms * random.uniform(0.8, 1.2)),
    }
