"""The page of the game. It replays what the moves of a level did when they were recorded."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from loadtest.game.levels import (
    LEVELS,
    LOCKED,
    STEPS,
    STOPS,
    WITHDRAW,
    orders_tried,
    recorded,
    sentences,
)
from loadtest.texts import texts
from shop.errors import BadInput
from shop.web.decorators import live_page


@live_page
def play(request: HttpRequest, name: str) -> HttpResponse:
    """Show a level after the moves that were `done` and another one; for htmx, what changes."""
    if name not in LEVELS:
        raise Http404
    form, halves = request.GET, recorded(name)
    done = [*form.get("done", "").split(), *form.getlist("action")]
    done = done[:-1] if "undo" in form else done
    half = halves[form.get("guarded") == "1"]
    here, told, latest, words = 0, list[str](), list[str](), sentences()
    for move in done:
        if move not in half["moves"][here]:
            raise BadInput
        here, *more = half["moves"][here][move]
        told += (latest := [words[one] for one in more])
    is_part = request.headers.get("HX-Request")
    context = {
        **page_context({**half["states"][here], "story": told, "can_undo": bool(done)}),
        "done": " ".join(done),
        "is_part": is_part,
        "latest": " ".join(latest).replace("。 ", "。"),
        "moves": sum(len(moves) for half in halves for moves in half["moves"]),
        "states": sum(len(half["states"]) for half in halves),
    }
    return render(request, "learn/_game.html" if is_part else "learn/game.html", context)


def page_context(view: dict[str, Any]) -> dict[str, Any]:
    """Return what the page shows of a state."""
    level = view["level"]
    told = texts()["game"][level]
    following = [*LEVELS, None][list(LEVELS).index(level) + 1]
    return {
        "state": view,
        "step": STEPS[level],
        "texts": told,
        "guard": told["guarded" if view["guarded"] else "unguarded"],
        "levels": [STEPS[name] for name in LEVELS],
        "next": STEPS[following] if following else None,
        "variant": LEVELS[level].variant(view["guarded"]),
        "orders_tried": orders_tried(level),
        "columns": _columns(view),
    }


def _columns(view: dict[str, Any]) -> list[tuple[Any, list[tuple[str, list[tuple[bool, str]]]]]]:
    """Return each buyer with its code: files with their lines, and True for the next one to run."""
    variant = LEVELS[view["level"]].variant(view["guarded"])
    stops, found = STOPS | variant.stops, []
    shown_code = [one for one in (LOCKED, variant.code, WITHDRAW) if one is not None]
    excerpts = [(one.path, one.lines()) for one in shown_code]
    for buyer in view["buyers"]:
        stop = stops.get(buyer["at"] or ("acquire" if buyer["name"] in view["waiting"] else ""))
        code = []
        for path, lines in excerpts:
            part = stop.first if stop is not None and stop.path == path else None
            code.append((path, [(part is not None and part in line, line) for line in lines]))
        found.append((buyer, code))
    return found
