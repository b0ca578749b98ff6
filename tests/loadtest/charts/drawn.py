"""Histories to draw, and where the elements of a drawn timeline are."""

from typing import Any
from xml.etree import ElementTree

from loadtest.charts import timeline
from loadtest.charts.axis import LEFT, RIGHT
from loadtest.charts.timeline_data import TimelineData
from loadtest.kernel.history import SECOND

SVG = "{http://www.w3.org/2000/svg}"


def misplaced(svg: str) -> list[str]:
    """Return what is more than a pixel from its linear time, magnified or not."""
    found = []
    panels = [one for one in parse(svg).iter() if one.get("data-length")]
    assert panels, "the chart has an axis"
    for panel in panels:
        first, length = int(panel.get("data-first", 0)), int(panel.get("data-length", 0))
        for one in panel.iter():
            if at := one.get("data-t"):
                x = float(one.get("x") or one.get("transform", "").split("(")[1].split()[0])
                if abs(x - LEFT - (RIGHT - LEFT) * (int(at) - first) / length) > 1:
                    found.append(ElementTree.tostring(one, "unicode"))
    return found


def contradictions(events: list[dict[str, Any]]) -> list[str]:
    """Return those of the leases shown after any of the events."""
    shown = (TimelineData({"events": events[:count]}) for count in range(1, len(events) + 1))
    return [found for data in shown for found in data.contradictions()]


def event(at: float, actor: str, do: str, type: str = "", **fields: Any) -> dict[str, Any]:
    said = {"t": round(at * SECOND), "actor": actor, "do": do, "type": type, "id": 1}
    if do in ("acquire", "release", "lost"):
        said |= {"name": "sale:1", "owner": f"owner of {actor}", "backend": "redis"}
    if type == "ok" and do == "acquire":
        said |= {"token": 7, "deadline": round((at + 1) * SECOND)}
    return said | fields


def paused(*, is_repaired: bool = False, **tokens: int) -> dict[str, Any]:
    """A is paused from 0.2 s to 2.2 s, B holds from 1.1 s to 1.6 s; `tokens` are those of each."""
    end = "fail" if is_repaired else "ok"
    error = {"error": "StaleFence"} if is_repaired else {"quantity": 0}
    events = [
        event(0.0, "buyer A", "acquire", "invoke"),
        event(0.1, "buyer A", "acquire", "ok"),
        event(0.15, "buyer A", "read", "ok", quantity=1),
        event(0.2, "buyer A", "fault", "start", what="paused", lane="buyer A"),
        event(0.3, "buyer B", "acquire", "invoke"),
        event(1.1, "buyer B", "acquire", "ok"),
        event(1.2, "buyer B", "read", "ok", quantity=1),
        event(1.5, "buyer B", "write", "ok", quantity=0),
        event(1.6, "buyer B", "release", "invoke"),
        event(1.61, "buyer B", "release", "ok"),
        event(2.2, "buyer A", "fault", "end", what="paused", lane="buyer A"),
        event(2.3, "buyer A", "write", end, **error),
        event(2.4, "buyer A", "release", "invoke"),
    ]
    for one in events:
        if tokens and (one["do"], one["type"]) in (("acquire", "ok"), ("read", "ok")):
            one["token"] = tokens[one["actor"][-1]]
    return {"guard": "<redis>", "is_repaired": is_repaired, "facts": {"stock": 1}, "events": events}


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314 - our own


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in parse(svg).iter(f"{SVG}text")]


def told(variant: dict[str, Any]) -> list[str]:
    return [f"{one.time} {one.text}" for one in timeline.story(variant)]
