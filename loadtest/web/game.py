"""The pages of the game: start it, run a step, start a level again. All of them are public."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_POST

from loadtest.charts.timeline_data import short_tokens
from loadtest.charts.timeline_story import story
from loadtest.game import client
from loadtest.game.levels import LEVELS, LOCKED, STEPS, STOPS, WITHDRAW, orders_tried
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
    """Run one action, or start a level again, with or without its guard."""
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
    if form.get("level") in LEVELS:
        rate_limits.count("30/minute", "game-begin", rate_limits.address_of(request))
        return {"do": "begin", "level": form["level"], "guarded": form.get("guarded") == "1"}
    buyer, _dash, verb = form.get("action", "").partition("-")
    turn = form.get("turn", "")
    if not verb or not turn.isdecimal() or len(turn) > 9:
        raise BadInput
    return {"do": "act", "buyer": buyer, "verb": verb, "turn": int(turn)}


def _page(request: HttpRequest, game: UUID, state: dict[str, Any], note: str = "") -> HttpResponse:
    level = LEVELS[state["level"]]
    variant = level.guarded if state["guarded"] else level.broken
    stops = STOPS | variant.stops
    at = {one["name"]: stops[one["at"]] for one in state["buyers"] if one["at"]}
    tokens, told = short_tokens(state["events"]), story({"events": state["events"]})

    def who(path: str, line: str) -> str:
        return "".join(one for one, stop in at.items() if stop.path == path and stop.first in line)

    won = request.session.get("levels", [])
    if state["won"] and not state["guarded"] and state["level"] not in won:
        request.session["levels"] = won = [*won, state["level"]]
    names = list(LEVELS)
    following = names[names.index(state["level"]) + 1 :]
    wrote = {
        one["actor"] for one in state["events"] if (one["do"], one.get("type")) == ("write", "ok")
    }
    for one in state["buyers"]:
        one["has_written"] = f"buyer {one['name']}" in wrote
    context = {
        "game": game,
        "won": won,
        "next": STEPS[following[0]] if following else None,
        "state": state,
        "step": STEPS[state["level"]],
        "levels": [STEPS[name] for name in LEVELS],
        "variant": variant,
        "orders_tried": orders_tried(state["level"]),
        "code": [
            (one.path, [(who(one.path, line), line) for line in one.lines()])
            for one in (LOCKED, variant.code, WITHDRAW)
            if one is not None
        ],
        "lock_token": tokens.get((state["lock"] or {}).get("token") or 0),
        "row_token": tokens.get(state["token"]),
        "story": told,
        "is_part": request.headers.get("HX-Request"),
        "latest": note or (told[-1].text if told else ""),
    }
    part = "_" if context["is_part"] else ""
    return render(request, f"learn/{part}game.html", context)
