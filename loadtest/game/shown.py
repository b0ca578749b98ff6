"""The state of a game as its page shows it."""

from typing import Any

from loadtest.charts.timeline_data import short_tokens
from loadtest.charts.timeline_story import story
from loadtest.game.levels import LEVELS, LOCKED, STOPS, WITHDRAW
from loadtest.kernel.history import Event

View = dict[str, Any]


def shown(state: dict[str, Any]) -> View:
    """Return a state of a Game without its events, but with what follows from them.

    `story` is in the active language. Tokens are "#1", "#2" ..., or "" where there is none.
    """
    view = {name: value for name, value in state.items() if name not in ("events", "token")}
    events, tokens = state["events"], short_tokens(state["events"])
    variant = LEVELS[state["level"]].variant(state["guarded"])
    known = {"events": events, "guard": variant.strategy, "has_fences": variant.alias == "redis"}
    view["story"] = [one.text for one in story(known)]
    view["row_token"] = tokens.get(state["token"], "")
    if lock := view["lock"]:
        ends = lock["expires_in"] and 0  # how soon differs in each run
        view["lock"] = {"name": "sale:1", "owner": lock["owner"], "ends": ends}
        view["lock"]["token"] = tokens.get(lock["token"] or 0, "")
    asked = {e["actor"]: e["type"] for e in events if e["do"] == "acquire"}
    waits = {"runs", "paused"}  # a killed buyer has asked, too
    waiting = [who for who, reply in asked.items() if reply == "invoke"]
    fences = tokens if variant.strategy == "fenced" else {}
    view["buyers"] = [
        one | _known(f"buyer {one['name']}", events, fences) for one in state["buyers"]
    ]
    names = [one["name"] for one in view["buyers"] if one["status"] in waits and not one["at"]]
    view["waiting"] = [name for who in waiting if (name := who.removeprefix("buyer ")) in names]
    return view


def _known(actor: str, events: list[Event], tokens: dict[int, str]) -> View:
    """Return what a buyer knows: its token, the stock as it read it, and whether it wrote."""
    last = {e["do"]: e for e in events if e["actor"] == actor and e.get("type") == "ok"}
    return {
        "token": tokens.get(last.get("acquire", {}).get("token") or 0, ""),
        "has_read": last.get("read", {}).get("quantity"),
        "has_written": "write" in last,
    }


def columns(view: View) -> list[tuple[View, list[tuple[str, list[tuple[bool, str]]]]]]:
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
