"""The timeline of a scenario, drawn from a handwritten history."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import translation

from loadtest.charts import svg, timeline
from loadtest.charts.axis import LEFT, RIGHT, WIDTH, Axis, width
from loadtest.charts.timeline_data import SECOND
from loadtest.charts.timeline_signs import BAD, LEASE
from loadtest.scenarios import SCENARIOS, export
from tests.loadtest.charts.drawn import (
    SVG,
    event,
    misnumbered,
    misplaced,
    parse,
    paused,
    texts,
    told,
)

IMAGES = Path(settings.BASE_DIR) / "docs/reference/img"


def test_lanes_overlaps_and_stock_of_a_history() -> None:
    data = timeline.read(paused())
    a, b = data.lanes["buyer A"], data.lanes["buyer B"]
    assert [(span.begin, span.end) for span in a.beliefs] == [(0.1 * SECOND, 2.4 * SECOND)]
    assert [(one.holder, one.begin, one.end, one.how) for one in data.leases] == [
        ("buyer A", 0.1 * SECOND, 1.1 * SECOND, "expired"),
        ("buyer B", 1.1 * SECOND, round(1.61 * SECOND), "released"),
    ]
    assert [(span.begin, span.end) for span in b.waits] == [(0.3 * SECOND, 1.1 * SECOND)]
    assert [(span.begin, span.end) for span in data.overlaps] == [(1.1 * SECOND, 1.6 * SECOND)]
    assert [(one.before, one.after, one.sold, one.is_bad) for one in data.stock] == [
        (1, 0, 1, False),
        (0, 0, 2, True),
    ]


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
    assert {
        "buyer A",
        "buyer B",
        "paused 2.0 s",
        "both think they hold it: 0.5 s",
        "stored in Redis",
        "expired",
        "1 → 0",
        "0 → 0: 2 of 1 sold",
    } <= {*found}
    found = texts(timeline.draw(paused(is_repaired=True)))
    assert found[0] == "Repaired: <redis>"
    assert "rejected" in found
    assert "row changed: rejected" in found
    assert not [one for one in found if "of 1 sold" in one]


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
    png = svg.png(timeline.draw(paused(), alone=True), 400)
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
        wide = width(text)
        left = x if one.get("text-anchor") != "middle" else x - wide / 2
        boxes.append((left, left + wide, y - 8, y, text))
        assert left >= 0
        assert left + wide <= WIDTH
    assert len([box for box in boxes if box[4].startswith("reads")]) == 8
    for place, (left, right, top, low, text) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            is_apart = right <= other[0] or other[1] <= left or low <= other[2] or other[3] <= top
            assert is_apart, (text, other[4])


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_events_are_drawn_at_their_linear_time(name: str) -> None:
    """In both variants, whose axes show the same number of seconds."""
    variants = export.recorded()["results"][name]["halves"]
    length = timeline.length_of(variants)
    for variant in variants:
        svg = timeline.draw(variant, length=length)
        assert misplaced(svg) == []
        assert misnumbered(variant["events"]) == []
        data = timeline.read(variant)
        panel = next(parse(svg).iter(f"{SVG}g"))
        assert panel.get("data-length") == str(length)
        times = {int(one.get("data-t", -1)) for one in panel.iter()} - {-1}
        begins = {span.begin for lane in data.lanes.values() for span in lane.beliefs}
        signs = {at for lane in data.lanes.values() for at, sign, _ in lane.marks if sign != "poll"}
        begins |= {lease.begin for lease in data.leases}
        signs |= {write.at for write in data.stock}
        assert {at - data.begin for at in begins | signs} <= times


def test_misplaced_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an axis that stretches its first part."""

    def stretched(axis: Axis, at: int) -> float:
        return LEFT + (RIGHT - LEFT) * ((at - axis.first) / axis.length) ** 0.8

    monkeypatch.setattr(Axis, "__call__", stretched)
    assert misplaced(timeline.draw(paused())) != []


@pytest.mark.parametrize("name", SCENARIOS)
def test_charts_of_the_docs_are_those_of_the_recording(name: str) -> None:
    result = export.recorded()["results"][name]
    for variant in result["halves"]:
        file = IMAGES / f"{name}-{export.half(variant)}.svg"
        assert file.read_bytes() == export.chart(result, variant, "svg"), (
            "write the charts again: export.write_charts(export.recorded(), IMAGES)"
        )


@pytest.mark.parametrize("language", ["en", "zh-hans"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_exported_page_is_small_and_has_its_script(name: str, language: str) -> None:
    report = export.recorded()
    with translation.override(language):
        html = export.html({**report, "scenarios": [report["results"][name]]})
    assert len(html.encode()) <= 300_000
    assert "class Player" in html
    assert ".playback" in html
    assert not re.search(r"<(link|script|img)[^>]+(href|src)=", html)


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_events_have_chinese_texts(name: str) -> None:
    """Names of commands and programs stay as they are."""
    kept = re.compile(
        r"process|redis|redlock|naive|fenced|zookeeper|database|MySQL|kill -9|ms$", re.IGNORECASE
    )
    with translation.override("zh-hans"):
        for variant in export.recorded()["results"][name]["halves"]:
            svg = timeline.draw(variant)
            description = parse(svg).findtext(f"{SVG}desc") or ""
            said = [*texts(svg), *description.split("。")]
            assert description.count("。") >= len(timeline.story(variant)) > 4
            assert [one for one in said if re.search("[a-z]{2,}", kept.sub("", one))] == []


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded_name_has_one_lease_at_a_time_in_a_store(name: str) -> None:
    for variant in export.recorded()["results"][name]["halves"]:
        data = timeline.read(variant)
        assert data.contradictions() == []
        longest = max((span.end - span.begin for span in data.overlaps), default=0) / SECOND
        assert longest == pytest.approx(variant["facts"]["overlap_seconds"], abs=0.005)


@pytest.mark.parametrize("name", SCENARIOS)
def test_keys_of_one_store_are_never_drawn_one_above_the_other(name: str) -> None:
    """In both panels; the rectangles of a row stand at the same height."""
    for variant in export.recorded()["results"][name]["halves"]:
        rows: dict[str, list[tuple[float, float]]] = {}
        for one in parse(timeline.draw(variant)).iter(f"{SVG}rect"):
            if one.get("stroke") == LEASE and one.get("data-t"):
                x = float(one.get("x", 0))
                rows.setdefault(one.get("y", ""), []).append((x, x + float(one.get("width", 0))))
        assert bool(rows) == bool(timeline.read(variant).leases)
        for row in rows.values():
            for (_left, end), (begin, _right) in pairwise(sorted(row)):
                assert begin >= end - 1  # a key is at least a pixel wide


def deleted(*, is_recorded: bool = True) -> dict[str, Any]:
    """A's late DEL removes B's key, and C is granted the lock while B still holds it."""
    events = [
        event(0.0, "buyer A", "acquire", "ok"),
        event(1.1, "buyer B", "acquire", "ok"),
        event(1.2, "buyer A", "release", "invoke"),
        event(1.21, "buyer A", "release", "ok"),
        event(1.21, "lab", "deleted", lane="buyer A", holder="buyer B"),
        event(1.3, "buyer C", "acquire", "ok"),
        event(1.5, "buyer C", "release", "invoke"),
        event(1.51, "buyer C", "release", "ok"),
        event(1.6, "buyer B", "release", "invoke"),
    ]
    events = [one for one in events if is_recorded or one["do"] != "deleted"]
    return {"guard": "SET NX PX", "is_repaired": False, "facts": {}, "events": events}


def test_lease_ends_with_the_delete_that_removed_it() -> None:
    variant = deleted()
    data = timeline.read(variant)
    ends = {one.holder: (one.end, one.how) for one in data.leases}
    assert ends["buyer B"] == (round(1.21 * SECOND), "deleted")
    assert data.contradictions() == []
    assert "DEL removes the key of buyer B" in texts(timeline.draw(variant))
    assert "1.210 s This deletes the key of buyer B." in told(variant)


def test_second_lease_in_a_store_is_a_contradiction() -> None:
    found = timeline.read(deleted(is_recorded=False)).contradictions()
    assert found == ["redis: buyer B and buyer C have leases for 0.300 s"]


def test_watchdog_that_notices_the_loss_has_a_lane_of_its_own() -> None:
    """The buyer's own code does not know it, and writes."""
    variant = paused()
    lost = {"name": "sale:1", "owner": "owner of buyer A"}
    variant["events"].insert(-2, {**event(2.25, "buyer A", "lost"), **lost})
    data = timeline.read(variant)
    assert data.lanes["watchdog of buyer A"].marks[0][2] == "notices the lock is lost"
    assert data.lanes["buyer A"].beliefs == timeline.read(paused()).lanes["buyer A"].beliefs


def test_rejected_write_shows_both_tokens() -> None:
    variant = paused(is_repaired=True)
    tokens = {"buyer A": 3676883491848286515, "buyer B": 3676883493906427343}
    for one in variant["events"]:
        if (one["do"], one["type"]) in (("acquire", "ok"), ("read", "ok")):
            one["token"] = tokens[one["actor"]]
    assert {"reads 1 · #1", "reads 1 · #2", "#2 > #1: rejected"} <= {*texts(timeline.draw(variant))}
    assert {
        "1.100 s Buyer B is granted the lock, with token #2.",
        "2.300 s Buyer A writes with token #1. The row has seen #2 and rejects it.",
    } <= {*told(variant)}


def test_key_with_a_fence_shows_its_token_and_one_of_a_recipe_does_not() -> None:
    variant = paused(is_repaired=True)
    for one in variant["events"]:
        if (one["do"], one["type"]) == ("read", "ok"):
            one["token"] = 7
    assert [lease.token for lease in timeline.read(variant).leases] == ["#1", "#1"]
    assert [lease.token for lease in timeline.read(paused()).leases] == ["", ""]


def test_tokens_count_in_the_order_of_fences() -> None:
    """A switch raises the epoch, which comes before the token."""
    events = export.recorded()["results"]["switch-under-load"]["halves"][0]["events"]
    tokens = [lease.token for lease in timeline.read({"events": events}).leases]
    stores = [lease.store for lease in timeline.read({"events": events}).leases]
    assert sorted(zip(tokens, stores, strict=True))[:3] == [
        ("#1", "redis"),
        ("#2", "redis"),
        ("#3", "database"),
    ]


def test_key_without_an_expiry_stays_and_no_lock_stores_none() -> None:
    """As recorded: the holder of SETNX is killed; the backend "none" has no store."""
    results = export.recorded()["results"]
    left = timeline.read(results["setnx-without-expiry"]["halves"][0])
    assert [(one.holder, one.end, one.how) for one in left.leases] == [
        ("buyer A", left.end, "stays")
    ]
    assert "no expiry" in texts(timeline.draw(results["setnx-without-expiry"]["halves"][0]))
    assert timeline.read(results["no-lock"]["halves"][0]).leases == []


def test_lost_update_of_a_load_test_is_not_counted() -> None:
    events = [
        event(0.001, "buyer A", "read", "ok", quantity=37),
        event(0.002, "buyer B", "read", "ok", quantity=37),
        event(0.003, "buyer A", "write", "ok", quantity=36),
        event(0.004, "buyer B", "write", "ok", quantity=36),
    ]
    found = texts(timeline.draw({"events": events, "facts": {}}, title="lost"))
    assert {"37 → 36", "36 → 36: not counted"} <= {*found}


def test_crowded_moments_are_magnified() -> None:
    axis = Axis(0, 100 * SECOND)
    crowd = axis.crowd([SECOND, SECOND + SECOND // 10], [0, 60 * SECOND])
    assert crowd is not None
    assert crowd.first < 0 < crowd(SECOND)
    assert crowd(SECOND + SECOND // 10) < RIGHT
    assert 60 * SECOND not in crowd
    assert axis.crowd([0, 30 * SECOND, 60 * SECOND, 90 * SECOND], []) is None
    assert axis.crowd([0], [SECOND, 2 * SECOND]) is None, "one sign covers no other"
    assert axis.crowd([], [n * SECOND // 10 for n in range(8)]) is not None
    assert axis.crowd([], []) is None


@pytest.mark.parametrize("seconds", [0.000_02, 0.03, 0.9, 7.0, 5000.0])
def test_ticks_are_round_evenly_spaced_and_apart(seconds: float) -> None:
    axis = Axis(round(0.4 * seconds * SECOND), round(seconds * SECOND))
    ticks = axis.ticks(0)
    assert 2 <= len(ticks) <= 9
    gaps = [b[0] - a[0] for a, b in pairwise(ticks)]
    assert all(47.9 < gap == pytest.approx(gaps[0], abs=0.1) for gap in gaps)
    assert all(LEFT <= x <= RIGHT + 0.1 for x, _label in ticks)


@pytest.mark.parametrize("events", [[], [event(1, "buyer A", "acquire", "invoke")]])
def test_incomplete_history_is_drawn(events: list[Any]) -> None:
    variant = {**paused(), "events": events}
    assert parse(timeline.draw(variant)).tag == f"{SVG}svg"
    assert len(timeline.story(variant)) == len(events)


def test_lease_of_a_killed_holder_continues() -> None:
    variant = paused()
    variant["events"] = variant["events"][:2]
    variant["events"] += [
        event(0.2, "lab", "fault", "start", what="killed", lane="buyer A", target="buyer A"),
        event(3.0, "buyer B", "acquire", "invoke"),
    ]
    lane = timeline.read(variant).lanes["buyer A"]
    assert [(span.begin, span.end) for span in lane.beliefs] == [(0.1 * SECOND, 0.2 * SECOND)]
    lease = timeline.read(variant).leases[0]
    assert (lease.begin, lease.end, lease.how) == (0.1 * SECOND, 1.1 * SECOND, "expired")
    assert BAD in timeline.draw(variant)
