"""The pages of the waiting room, and what their script reads."""

import json
from datetime import timedelta
from functools import partial
from typing import Any

from django.conf import settings
from django.http import FileResponse, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from shop.catalogue.page_cache import get_cached_sale
from shop.errors import STORE_ERRORS, NotFound, ServiceUnavailable, wants_json
from shop.mail.service import can_mail, has_reminder
from shop.models import Order, Sale, User
from shop.orders.service import live_orders
from shop.platform import proof_of_work
from shop.platform.cache import RefreshingCache
from shop.platform.rate_limits import address_of
from shop.purchase.admission import cached_sale
from shop.web.decorators import (
    CustomerRequest,
    customer_form,
    customer_page,
    live_page,
    public_page,
)
from waiting_room import service
from waiting_room.models import Room
from waiting_room.service import Place, RoomStatus
from waiting_room.tickets import shuffle

REFRESH = 5
"""Least seconds until a page without script loads again; that costs more than a poll."""
RECORD_FRESH, RECORD_MAX_AGE = 5.0, 60.0
"""Seconds for which a process keeps the record, which takes a second for 100,000 people."""
DRAWN_MAX_AGE = 300
"""Seconds for which drawn positions may be kept; a reset after the draw leads to no others."""
UNAVAILABLE = "unavailable"
AWAY = ("before", "shuffling", "waiting")
"""The views whose visitors may leave, and are called by email."""
VERIFIER = settings.BASE_DIR / "tools/verify_lottery.py"
REASONS = {
    Room.Reason.PAUSED: _("The shop had paused the room, so your turn comes later."),
    Room.Reason.SLOWED: _("Fewer people are let in per minute than before."),
}

_records: RefreshingCache[str, dict[str, Any]] = RefreshingCache(100)
_drawn: RefreshingCache[str, dict[str, dict[str, int]]] = RefreshingCache(10)
clear = _records.clear


@live_page
def room(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the room as it is for this visitor; the script keeps the page up to date.

    Without a room, which staff may have ended, send the visitor to the sale.
    """
    sale = get_cached_sale(slug=slug).sale
    if not (found := service.room_of(sale=sale)):
        return redirect(sale)
    now, place, order = service.status_of(sale=sale), None, None
    if isinstance(request.user, User):
        try:
            place = service.place_of(sale=sale, customer_id=request.user.pk)
            order = _last_order(sale, request.user) if place and place.admitted else None
        except ServiceUnavailable:
            now = now._replace(state=UNAVAILABLE)
    context = {
        "sale": sale,
        "room": found,
        "status": now,
        "place": place,
        "order": order,
        "turn_until": timezone.now() + timedelta(seconds=place.lasts) if place else None,
        "view": _view(now, place, is_done=order is not None),
        "reasons": REASONS.items(),
        "minutes": settings.WAITING_ROOM_TURN_SECONDS / 60,
        "status_json": json.dumps(now._asdict()),
        "place_json": json.dumps(place and place._asdict()),
        "refresh": max(REFRESH, now.poll),
        **_waiting(now, place),
    }
    if context["view"] in AWAY and can_mail() and isinstance(request.user, User):
        context["reminder"] = has_reminder(sale=sale, customer=request.user)
    return render(request, "waiting_room/room.html", context)


def _last_order(sale: Sale, customer: User) -> Order | None:
    """Return the customer's newest order if their limit is reached, so that the turn is used."""
    orders, _pay_by = live_orders(customer=customer, sale=sale)
    return orders[0] if sum(one.quantity for one in orders) >= sale.limit_per_customer else None


def _view(now: RoomStatus, place: Place | None, *, is_done: bool) -> str:
    """Return the part of the page that this visitor sees, as `viewOf` in room.js does."""
    if now.state in ("ended", UNAVAILABLE):
        return now.state
    if place is None:
        return "join"
    if place.admitted:
        return "bought" if is_done else "turn"
    if place.is_over:
        return "over"
    if now.state == "before":
        return "before"
    return "waiting" if place.position else "shuffling"


def _waiting(now: RoomStatus, place: Place | None) -> dict[str, Any]:
    """Return what stands in the part for those who wait."""
    if place is None or place.position is None:
        return {"ahead": 0}
    least, most = estimate(position=place.position, serving=now.serving, inlet_per_minute=now.inlet)
    ahead = max(0, place.position - now.serving - 1)
    is_few = now.state == "open" and ahead >= now.left
    return {"ahead": ahead, "least": least, "most": most, "is_few": is_few}


def estimate(*, position: int, serving: int, inlet_per_minute: int) -> tuple[int, int]:
    """Return the least and the most minutes to wait: 20 % around the quotient, in whole minutes.

    With a constant inlet neither ever rises, because `serving` never falls. (0, 0) once admitted.
    static/js/room.js repeats the formula.
    """
    tenths, ahead = 10 * inlet_per_minute, max(0, position - serving)
    return 8 * ahead // tenths, -(-12 * ahead // tenths)


@public_page
def status(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the numbers that everyone polls, also while a store is down. Raise NotFound."""
    closed: dict[str, Any] = {"state": UNAVAILABLE}
    try:
        found = service.status_of(sale=cached_sale(slug=slug))._asdict()
    except (ServiceUnavailable, *STORE_ERRORS):
        found = closed
    # The script keeps the numbers that it knows.
    return _shared(closed if found["state"] == UNAVAILABLE else found, max_age=1)


@public_page
def record(request: HttpRequest, slug: str) -> HttpResponse:
    """Return the record of the draw. Raise NotFound or ServiceUnavailable."""
    # After a reset, the record of the earlier draw would not pass the check of a new page.
    return _shared(_record_of(cached_sale(slug=slug)), max_age=1)


@public_page
def positions(request: HttpRequest, slug: str, prefix: str) -> HttpResponse:
    """Return the drawn positions of the tickets with that prefix. Raise NotFound before the draw.

    After the draw everyone asks for a position in the same seconds. These files are public like
    the record, so nginx serves them: Python builds each of the 256 once.
    """
    found = _record_of(cached_sale(slug=slug))
    if not found["seed"]:
        raise NotFound
    read = partial(_by_prefix, found)
    drawn = _drawn.get(found["seed"], read, fresh=DRAWN_MAX_AGE, max_age=DRAWN_MAX_AGE)
    return _shared(drawn.get(prefix, {}), max_age=DRAWN_MAX_AGE)


def _record_of(sale: Sale) -> dict[str, Any]:
    room, state = service.existing_room(sale=sale), service.status_of(sale=sale).state
    # A record without the seed is not kept beyond the draw.
    key = f"{room.pk}:{room.generation}:{state in ('before', 'shuffling')}"
    read = partial(service.record_of, room=room)
    return _records.get(key, read, fresh=RECORD_FRESH, max_age=RECORD_MAX_AGE)


def _by_prefix(record: dict[str, Any]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    order = shuffle(record["list"], seed=record["seed"], root=record["root"])
    for position, ticket in enumerate(order, 1):
        found.setdefault(ticket[:2], {})[ticket] = position
    return found


def _shared(body: dict[str, Any], *, max_age: int) -> HttpResponse:
    # nginx keeps it as long as browsers do.
    headers = {"Cache-Control": f"public, max-age={max_age}", "X-Accel-Expires": str(max_age)}
    return JsonResponse(body, headers=headers, json_dumps_params={"separators": (",", ":")})


@customer_page
def place(request: CustomerRequest, slug: str) -> HttpResponse:
    """Return the customer's own place. Raise NotFound without one."""
    found = service.place_of(sale=cached_sale(slug=slug), customer_id=request.user.pk)
    if found is None:
        raise NotFound
    return JsonResponse(found._asdict())


@customer_form
def join(request: CustomerRequest, slug: str) -> HttpResponse:
    """Give the customer a place, once; show it, or the sale to those admitted at once.

    Raise ProofRequired, which shows a page with the challenge and this form.
    """
    sale, purpose = cached_sale(slug=slug), f"join {slug} {request.user.pk}"
    proof_of_work.check(request.POST, purpose=purpose, address=address_of(request))
    found = service.join(sale=sale, customer_id=request.user.pk)
    if wants_json(request):
        return JsonResponse(found._asdict())
    return redirect(sale) if found.admitted else redirect("room", slug)


@public_page
def verifier(request: HttpRequest) -> FileResponse:
    """Return the script that checks the record of a draw."""
    return FileResponse(VERIFIER.open("rb"), content_type="text/x-python", as_attachment=True)
