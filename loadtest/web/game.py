"""The pages of the game: start it, run a step, start a level again. All of them are public."""

from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render, resolve_url
from django.views.decorators.http import require_POST

from loadtest.charts.timeline_data import read, short_tokens
from loadtest.charts.timeline_story import story
from loadtest.game import client
from loadtest.game.levels import LEVELS, STATUSES, STOP_TEXTS, STOPS, Level
from shop.errors import BadInput
from shop.platform import rate_limits
from shop.web.decorators import live_page

COOKIE = "game"
"""The visitor's game, which another level takes over instead of starting a second one."""
RESTARTS = "30/minute"
VERBS = ("step", "pause", "kill")


@require_POST
def start(request: HttpRequest, name: str) -> HttpResponse:
    """Start a level, in the visitor's running game or in a new one."""
    if name not in LEVELS:
        raise Http404
    rate_limits.count(settings.LAB_GUEST_LIMIT, "game", rate_limits.address_of(request))
    try:
        game = UUID(request.COOKIES.get(COOKIE, ""))
        client.ask(game, "begin", level=name, guarded=False)
    except (ValueError, client.GameEnded):
        game = client.start(name)
    response = redirect("game", game)
    age = int(client.LIFE_SECONDS)
    response.set_cookie(
        COOKIE, game.hex, max_age=age, httponly=True, samesite="Lax", secure=request.is_secure()
    )
    return response


@live_page
def show(request: HttpRequest, game: UUID) -> HttpResponse:
    """Show the game; for htmx, the part that changes."""
    return _page(request, game, client.ask(game, "state"))


@require_POST
def begin(request: HttpRequest, game: UUID) -> HttpResponse:
    """Start a level again, with or without its guard, or another level."""
    level, guarded = request.POST.get("level", ""), request.POST.get("guarded") == "1"
    if level not in LEVELS:
        raise BadInput
    rate_limits.count(RESTARTS, "game-begin", rate_limits.address_of(request))
    return _answer(request, game, client.ask(game, "begin", level=level, guarded=guarded))


@require_POST
def act(request: HttpRequest, game: UUID) -> HttpResponse:
    """Run one action."""
    buyer, _dash, verb = request.POST.get("action", "").partition("-")
    turn = request.POST.get("turn", "")
    if not turn.isdecimal() or len(turn) > 9:
        raise BadInput
    try:
        state = client.ask(game, "act", buyer=buyer, verb=verb, turn=int(turn))
    except client.StepOutdated as outdated:
        if not request.headers.get("HX-Request"):
            outdated.link = resolve_url("game", game)
            raise
        return _page(request, game, client.ask(game, "state"), note=str(outdated.title))
    return _answer(request, game, state)


def _answer(request: HttpRequest, game: UUID, state: dict[str, Any]) -> HttpResponse:
    return (
        _page(request, game, state) if request.headers.get("HX-Request") else redirect("game", game)
    )


def _page(request: HttpRequest, game: UUID, state: dict[str, Any], note: str = "") -> HttpResponse:
    level = LEVELS[state["level"]]
    variant = level.variant(state["guarded"])
    stops = STOPS | variant.stops
    here: dict[tuple[str, int], str] = {}
    for buyer in state["buyers"]:
        if buyer["at"]:
            place = stops[buyer["at"]].path, stops[buyer["at"]].start()
            here[place] = here.get(place, "") + buyer["name"]
    tokens = short_tokens(state["events"])
    variant_events = {"events": state["events"]}
    begin = read(variant_events).begin
    renewals = {e["t"] - begin for e in state["events"] if e["do"] == "renew"}
    told = [sentence for sentence in story(variant_events) if sentence.at not in renewals]
    context = {
        "game": game,
        "state": state,
        "level": level,
        "levels": [one.step for one in LEVELS.values()],
        "guard": level.guarded.guard,
        "variant": variant,
        "code": [
            (one.path, [(here.get((one.path, n), ""), text) for n, text in _numbered(one)])
            for one in variant.code
        ],
        "buyers": [_buyer(level, state, buyer) for buyer in state["buyers"]],
        "locks": [one | {"token": tokens.get(one["token"])} for one in state["locks"]],
        "token": tokens.get(state["stock"]["token"]),
        "story": told,
        "latest": note or (told[-1].text if told else ""),
        "is_part": bool(request.headers.get("HX-Request")),
    }
    return render(request, f"learn/{'_' if context['is_part'] else ''}game.html", context)


def _numbered(code: Any) -> Any:
    return enumerate(code.lines(), code.start())


def _buyer(level: Level, state: dict[str, Any], buyer: dict[str, Any]) -> dict[str, Any]:
    """Return a buyer in words, and its buttons: those that are possible now and the others."""
    possible = [verb for name, verb in state["actions"] if name == buyer["name"]]
    is_first = buyer["name"] == level.buyers[0]
    verbs = [
        verb
        for verb, is_offered in zip(VERBS, (True, level.pauses_at, level.kills), strict=True)
        if is_offered and (verb == "step" or is_first)
    ]
    status = buyer["status"]
    is_stopped = status == "stopped"
    words = STOP_TEXTS[buyer["at"]] if is_stopped else STATUSES.get(status, STATUSES["failed"])
    return buyer | {"words": words, "verbs": [(verb, verb in possible) for verb in verbs]}
