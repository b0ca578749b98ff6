"""The timeline of a scenario, drawn from a handwritten history."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from django.utils import translation

from loadtest.charts import timeline
from loadtest.charts.timeline import BAD, SECOND

SVG = "{http://www.w3.org/2000/svg}"


def event(at: float, actor: str, do: str, type: str = "", **fields: Any) -> dict[str, Any]:
    said = {"t": round(at * SECOND), "actor": actor, "do": do, "type": type, "id": 1, **fields}
    if do in ("acquire", "release"):
        said |= {"name": "sale:1", "owner": f"owner of {actor}"}
    if type == "ok" and do == "acquire":
        said |= {"token": 7, "deadline": round((at + 1) * SECOND)}
    return said


def paused(*, is_repaired: bool = False) -> dict[str, Any]:
    """A is paused from 0.2 s to 2.2 s, B holds from 1.1 s to 1.6 s."""
    end = "fail" if is_repaired else "ok"
    error = {"error": "StaleFence"} if is_repaired else {}
    events = [
        event(0.0, "buyer A", "acquire", "invoke"),
        event(0.1, "buyer A", "acquire", "ok"),
        event(0.15, "buyer A", "read", "ok", quantity=1),
        event(0.2, "buyer A", "fault", "start", what="paused", lane="buyer A"),
        event(0.3, "buyer B", "acquire", "invoke"),
        event(1.1, "buyer B", "acquire", "ok"),
        event(1.2, "buyer B", "read", "ok", quantity=1),
        event(1.5, "buyer B", "write", "ok"),
        event(1.6, "buyer B", "release", "invoke"),
        event(1.61, "buyer B", "release", "ok"),
        event(2.2, "buyer A", "fault", "end", what="paused", lane="buyer A"),
        event(2.3, "buyer A", "write", end, **error),
        event(2.4, "buyer A", "release", "invoke"),
    ]
    facts = {"stock": 1}
    return {"guard": "<redis>", "is_repaired": is_repaired, "facts": facts, "events": events}


def parse(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # noqa: S314 - our own


def texts(svg: str) -> list[str]:
    return [one.text or "" for one in parse(svg).iter(f"{SVG}text")]


def test_lanes_overlaps_and_stock_of_a_history() -> None:
    data = timeline.read(paused())
    a, b = data.lanes["buyer A"], data.lanes["buyer B"]
    assert [(span.begin, span.end) for span in a.beliefs] == [(0.1 * SECOND, 2.4 * SECOND)]
    assert [(span.begin, span.end) for span in a.leases] == [(0.1 * SECOND, 1.1 * SECOND)]
    assert [(span.begin, span.end) for span in b.waits] == [(0.3 * SECOND, 1.1 * SECOND)]
    assert [(span.begin, span.end) for span in data.overlaps] == [(1.1 * SECOND, 1.6 * SECOND)]
    assert [sold for _, sold in data.stock] == [1, 2]


def test_lock_of_another_name_is_no_second_holder() -> None:
    """A form that is sent twice holds a lock in its own name beside the stock's."""
    variant = paused()
    beside = {"name": "idempotency:form", "owner": "owner of a form"}
    variant["events"][4:4] = [
        {**event(0.2, "buyer B", "acquire", "ok"), **beside},
        {**event(0.9, "buyer B", "release", "invoke"), **beside},
    ]
    assert timeline.read(variant) == timeline.read(paused())


def test_labels_name_the_events() -> None:
    found = texts(timeline.draw(paused()))
    assert found[0] == "Broken: <redis>"
    assert {"buyer A", "buyer B", "paused 2.0 s", "two believe: 0.5 s", "2 of 1 sold"} <= {*found}
    found = texts(timeline.draw(paused(is_repaired=True)))
    assert found[0] == "Repaired: <redis>"
    assert "refused" in found
    assert "2 of 1 sold" not in found


def test_chart_in_a_page_has_no_style_and_inherits_its_colour() -> None:
    """The page's content security policy forbids inline styles."""
    svg = timeline.draw(paused())
    tree = parse(svg)
    assert {one.tag.removeprefix(SVG) for one in tree.iter()}.isdisjoint({"style", "script"})
    assert "style=" not in svg
    assert tree.get("fill") == "currentColor"
    assert tree.get("color") is None
    assert (tree.get("role"), tree.get("aria-label")) == ("img", "Broken: <redis>")


def test_file_adds_a_background_to_the_same_chart() -> None:
    inside = re.findall(r"<(?:text|rect|circle|line|path) .*", timeline.draw(paused()))
    alone = timeline.draw(paused(), alone=True)
    assert "prefers-color-scheme: dark" in alone
    assert all(part in alone for part in inside)
    assert len(inside) > 30
    png = timeline.png(paused(), width=400)
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") == 400


def test_labels_do_not_overlap() -> None:
    variant = paused()
    # Many marks at nearly one moment.
    variant["events"][6:6] = [
        event(1.15 + n / 1000, "buyer B", "read", "ok", quantity=n + 10) for n in range(6)
    ]
    tree = parse(timeline.draw(variant))
    boxes = []
    for one in tree.iter(f"{SVG}text"):
        text, x, y = one.text or "", float(one.get("x", 0)), float(one.get("y", 0))
        wide = timeline.width(text)
        left = x if one.get("text-anchor") != "middle" else x - wide / 2
        boxes.append((left, left + wide, y - 8, y, text))
        assert left >= 0
        assert left + wide <= timeline.WIDTH
    assert len([box for box in boxes if box[4].startswith("reads")]) == 8
    for place, (left, right, top, low, text) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            is_apart = right <= other[0] or other[1] <= left or low <= other[2] or other[3] <= top
            assert is_apart, (text, other[4])


def test_moments_keep_their_order_and_a_minimum_distance() -> None:
    axis = timeline._Axis([0, SECOND // 100, 2 * SECOND // 100, 100 * SECOND])
    places = [axis(at) for at in (0, SECOND // 100, 2 * SECOND // 100, 50 * SECOND, 100 * SECOND)]
    assert places == sorted(places)
    assert places[2] - places[1] > 50
    assert axis(200 * SECOND) == places[-1]


@pytest.mark.parametrize("events", [[], [event(1, "buyer A", "acquire", "invoke")]])
def test_incomplete_history_is_drawn(events: list[Any]) -> None:
    variant = {**paused(), "events": events}
    assert parse(timeline.draw(variant)).tag == f"{SVG}svg"
    assert len(timeline.rows(variant)) == len(events)


def test_lease_of_a_killed_holder_continues() -> None:
    variant = paused()
    variant["events"] = variant["events"][:2]
    variant["events"] += [
        event(0.2, "lab", "fault", "start", what="killed", lane="buyer A", target="buyer A"),
        event(3.0, "buyer B", "acquire", "invoke"),
    ]
    lane = timeline.read(variant).lanes["buyer A"]
    assert [(span.begin, span.end) for span in lane.beliefs] == [(0.1 * SECOND, 0.2 * SECOND)]
    assert [(span.begin, span.end) for span in lane.leases] == [(0.1 * SECOND, 1.1 * SECOND)]
    assert BAD in timeline.draw(variant)


def test_table_has_both_languages() -> None:
    rows = timeline.rows(paused(is_repaired=True))
    assert rows[0] == (0.0, "buyer A", "asks for the lock")
    assert (1.1, "buyer B", "is granted the lock, token 7") in rows
    assert (2.3, "buyer A", "writes, and is refused") in rows
    with translation.override("zh-hans"):
        assert timeline.rows(paused())[0] == (0.0, "买家 A", "请求锁")
        assert texts(timeline.draw(paused()))[0] == "故障：<redis>"
