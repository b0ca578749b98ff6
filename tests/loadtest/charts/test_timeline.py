"""The timeline of a scenario, drawn from handwritten histories and from the recordings."""

import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import translation

from loadtest.charts import svg, timeline
from loadtest.charts.axis import LEFT, RIGHT, WIDTH, Axis, width
from loadtest.charts.timeline_data import TimelineData
from loadtest.kernel.history import SECOND
from loadtest.scenarios import SCENARIOS, export
from tests.loadtest.charts.drawn import (
    SVG,
    contradictions,
    event,
    misplaced,
    parse,
    paused,
    texts,
    told,
)

IMAGES = Path(settings.BASE_DIR) / "docs/img"
recordings = pytest.mark.parametrize("name", SCENARIOS)


def variants_of(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = export.recorded()["results"][name]["halves"]
    return found


def leases(variant: dict[str, Any]) -> list[tuple[Any, ...]]:
    data = TimelineData(variant)
    ends = ((one, one.begin / SECOND, one.end / SECOND) for one in data.leases)
    return [(one.holder, begin, end, one.how, data.token_of(one)) for one, begin, end in ends]


def test_lanes_overlaps_and_stock_of_a_history() -> None:
    data = TimelineData(paused())
    a, b = data.lanes["buyer A"], data.lanes["buyer B"]
    assert [(span.begin, span.end) for span in a.beliefs] == [(0.1 * SECOND, 2.4 * SECOND)]
    assert leases(paused()) == [
        ("buyer A", 0.1, 1.1, "expired", ""),
        ("buyer B", 1.1, 1.61, "released", ""),
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
        event(0.2, "buyer B", "acquire", "ok", **beside),
        event(0.9, "buyer B", "release", "invoke", **beside),
    ]
    assert timeline.draw(variant) == timeline.draw(paused())


def test_refused_write_shows_both_tokens() -> None:
    variant = paused(is_repaired=True, A=3676883491848286515, B=3676883493906427343)
    assert {"reads 1 · #1", "reads 1 · #2", "#2 > #1: refused"} <= {*texts(timeline.draw(variant))}
    assert {
        "1.100 s Buyer B is granted the lock, with token #2.",
        "2.300 s Buyer A writes with token #1. The row carries #2 and refuses it.",
    } <= {*told(variant)}
    assert [lease[-1] for lease in leases(variant)] == ["#1", "#2"]
    assert [lease[-1] for lease in leases(paused())] == ["", ""], "a recipe has no fence"


def test_chart_in_a_page_has_no_style_and_inherits_its_colour() -> None:
    """The page's content security policy forbids inline styles; a file has a background."""
    inside, alone = timeline.draw(paused()), timeline.draw(paused(), alone=True)
    tree = parse(inside)
    assert {one.tag.removeprefix(SVG) for one in tree.iter()}.isdisjoint({"style", "script"})
    assert "style=" not in inside
    assert (tree.get("fill"), tree.get("color")) == ("currentColor", None)
    assert (tree.get("role"), tree.get("aria-label")) == ("img", "Broken: <redis>")
    assert "prefers-color-scheme: dark" in alone
    assert int.from_bytes(svg.png(alone, 400)[16:20], "big") == 400


def test_no_label_covers_another_or_the_line_of_a_flag() -> None:
    variant = paused()
    # Many marks at nearly one moment.
    variant["events"][6:6] = [
        event(1.15 + n / 1000, "buyer B", "read", "ok", quantity=n + 10) for n in range(6)
    ]
    boxes = []
    drawn = parse(timeline.draw(variant))
    for one in drawn.iter(f"{SVG}text"):
        text, x, y = one.text or "", float(one.get("x", 0)), float(one.get("y", 0))
        left = x - width(text) * {"start": 0, "middle": 0.5, "end": 1}[one.get("text-anchor", "")]
        boxes.append((left, left + width(text), y - 8, y, text))
        assert LEFT <= left <= WIDTH - width(text)
    assert len([box for box in boxes if box[4].startswith("reads")]) == 8
    for place, (left, right, top, low, text) in enumerate(boxes):
        for other in boxes[place + 1 :]:
            is_apart = right <= other[0] or other[1] <= left or low <= other[2] or other[3] <= top
            assert is_apart, (text, other[4])
    lines = [one for one in drawn.iter(f"{SVG}line") if one.get("x1") == one.get("x2")]
    flags = [one for one in lines if float(one.get("y2", 0)) - float(one.get("y1", 0)) > 10]
    assert len(flags) > 5
    for one in flags:
        x, top, low = (float(one.get(name, 0)) for name in ("x1", "y1", "y2"))
        crossed = [box for box in boxes if box[0] < x < box[1] and box[2] < low and top < box[3]]
        assert not crossed, (x, crossed)


@recordings
def test_recorded_events_are_drawn_at_their_linear_time(name: str) -> None:
    """In both variants, whose axes show the same number of seconds; no store grants twice."""
    length = timeline.length_of(variants_of(name))
    for variant in variants_of(name):
        drawn, data = timeline.draw(variant, length=length), TimelineData(variant)
        assert misplaced(drawn) == []
        assert contradictions(variant["events"]) == []
        panel = next(parse(drawn).iter(f"{SVG}g"))
        assert panel.get("data-length") == str(length)
        times = {int(one.get("data-t", -1)) for one in panel.iter()}
        lanes = data.lanes.values()
        shown = {at for lane in lanes for at, sign, _label in lane.marks if sign != "poll"}
        shown |= {span.begin for lane in lanes for span in lane.beliefs}
        shown |= {lease.begin for lease in data.leases} | {write.at for write in data.stock}
        assert {at - data.begin for at in shown} <= times
        longest = max((span.end - span.begin for span in data.overlaps), default=0) / SECOND
        assert longest == pytest.approx(variant["facts"]["overlap_seconds"], abs=0.005)


def test_misplaced_event_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an axis that stretches its first part."""

    def stretched(axis: Axis, at: int) -> float:
        return LEFT + (RIGHT - LEFT) * ((at - axis.first) / axis.length) ** 0.8

    monkeypatch.setattr(Axis, "__call__", stretched)
    assert misplaced(timeline.draw(paused())) != []


def test_charts_of_the_readme_are_those_of_the_recording() -> None:
    result = export.recorded()["results"]["holder-paused"]
    for variant in result["halves"]:
        file = IMAGES / f"holder-paused-{export.half(variant)}.svg"
        assert file.read_bytes() == export.chart(result, variant, "svg"), (
            "export.write_charts({'scenarios': [result]}, IMAGES, suffix='svg')"
        )


@recordings
def test_recorded_events_have_chinese_texts(name: str) -> None:
    """Names of commands and programs stay as they are."""
    kept = re.compile(
        r"process|redis|redlock|naive|fenced|conditional|zookeeper|database|MySQL|kill -9|ms$",
        re.IGNORECASE,
    )
    with translation.override("zh-hans"):
        for variant in variants_of(name):
            drawn = timeline.draw(variant)
            description = parse(drawn).findtext(f"{SVG}desc") or ""
            said = [*texts(drawn), *description.split("。")]
            assert description.count("。") >= len(timeline.story(variant)) > 4
            assert [one for one in said if re.search("[a-z]{2,}", kept.sub("", one))] == []


def deleted(*, is_recorded: bool = True) -> dict[str, Any]:
    """A's late DEL removes B's key, and C is granted the lock while B still holds it."""
    events = [
        event(0.0, "buyer A", "acquire", "ok"),
        event(1.1, "buyer B", "acquire", "ok"),
        event(1.2, "buyer A", "release", "invoke"),
        event(1.21, "buyer A", "release", "ok"),
        *[event(1.21, "lab", "deleted", lane="buyer A", holder="buyer B")] * is_recorded,
        event(1.3, "buyer C", "acquire", "ok"),
        event(1.5, "buyer C", "release", "invoke"),
        event(1.51, "buyer C", "release", "ok"),
        event(1.6, "buyer B", "release", "invoke"),
    ]
    return {"guard": "SET NX PX", "is_repaired": False, "facts": {}, "events": events}


def test_lease_ends_with_the_delete_that_removed_it() -> None:
    assert leases(deleted())[1][2:4] == (1.21, "deleted")
    assert TimelineData(deleted()).contradictions() == []
    assert "DEL removes the key of buyer B" in texts(timeline.draw(deleted()))
    assert "1.210 s This deletes the key of buyer B." in told(deleted())


def test_what_no_store_grants_is_a_contradiction() -> None:
    found = TimelineData(deleted(is_recorded=False)).contradictions()
    assert found == ["redis: buyer B and buyer C have leases for 0.300 s"]
    found = TimelineData(paused(A=8, B=7)).contradictions()
    assert found == ["redis: buyer B has no higher fence than the one before"]


def test_lost_update_of_a_load_test_is_not_counted() -> None:
    events = [
        event(at, f"buyer {who}", do, "ok", quantity=quantity)
        for at, (do, quantity) in enumerate([("read", 37), ("write", 36)])
        for who in "AB"
    ]
    found = texts(timeline.draw({"events": events, "facts": {}}, title="lost"))
    assert {"37 → 36", "36 → 36: not counted"} <= {*found}


@pytest.mark.parametrize("count", [0, 1])
def test_incomplete_history_is_drawn(count: int) -> None:
    variant = {**paused(), "events": paused()["events"][:count]}
    assert parse(timeline.draw(variant)).tag == f"{SVG}svg"
    assert len(timeline.story(variant)) == count


def test_order_that_a_second_form_finds_is_in_the_picture() -> None:
    """The process that wrote it was killed at the same moment: its cross is above the check."""
    drawn = timeline.draw(variants_of("retry-after-lost-reply")[1])
    assert "same order" in texts(drawn)
    assert drawn.index("M-3 0l2.2 2.4") < drawn.index("M-5 -6l10 12")
