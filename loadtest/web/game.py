"""The pages of the game: start it, run a step, undo it, start a level again. All are public."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_POST

from loadtest.game import client
from loadtest.game.levels import LEVELS, STEPS, orders_tried
from loadtest.game.shown import columns, shown
from shop.errors import BadInput
from shop.platform import rate_limits
from shop.web.decorators import live_page, visitor_form


@visitor_form
def start(request: HttpRequest, name: str) -> HttpResponse:
    """Start a game at a level."""
    if name not in LEVELS:
        raise Http404
    rate_limits.count(settings.LAB_GUEST_LIMIT, "game", rate_limits.address_of(request))
    return redirect("game", client.start(name))


@live_page
def show(request: HttpRequest, game: UUID) -> HttpResponse:
    """Show the game; for htmx, the part that changes."""
    return _page(request, game, client.ask(game, "state"))


@require_POST
def act(request: HttpRequest, game: UUID) -> HttpResponse:
    """Run or undo one action, or start a level again, with or without its guard."""
    is_part, note = request.headers.get("HX-Request"), ""
    try:
        state = client.ask(game, **_wanted(request))
    except client.StepOutdated as outdated:
        if not is_part:
            outdated.link = resolve_url("game", game)
            raise
        state, note = client.ask(game, "state"), str(outdated.title)
    return _page(request, game, state, note) if is_part else redirect("game", game)


def _wanted(request: HttpRequest) -> dict[str, Any]:
    """Return the request to the host. Raise BadInput."""
    form = request.POST
    if form.get("level") in LEVELS or "undo" in form:
        rate_limits.count("30/minute", "game-begin", rate_limits.address_of(request))
    if form.get("level") in LEVELS:
        return {"do": "begin", "level": form["level"], "guarded": form.get("guarded") == "1"}
    buyer, _dash, verb = form.get("action", "").partition("-")
    turn = form.get("turn", "")
    if not turn.isdecimal() or len(turn) > 9 or not (verb or "undo" in form):
        raise BadInput
    move = {"do": "act", "buyer": buyer, "verb": verb} if verb else {"do": "undo"}
    return {**move, "turn": int(turn)}


def _page(request: HttpRequest, game: UUID, state: dict[str, Any], note: str = "") -> HttpResponse:
    view = shown(state)
    is_part = request.headers.get("HX-Request")
    context = {
        **page_context(view),
        "game": game,
        "is_part": is_part,
        "latest": note or (view["story"][-1] if view["story"] else ""),
    }
    return render(request, "learn/_game.html" if is_part else "learn/game.html", context)


def page_context(view: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a state, live or recorded."""
    level = view["level"]
    following = [*LEVELS, None][list(LEVELS).index(level) + 1]
    return {
        "state": view,
        "step": STEPS[level],
        "levels": [STEPS[name] for name in LEVELS],
        "next": STEPS[following] if following else None,
        "variant": LEVELS[level].variant(view["guarded"]),
        "orders_tried": orders_tried(level),
        "columns": columns(view),
    }
