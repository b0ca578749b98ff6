"""The events of a timeline in words, and the lines of code beside them."""

from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.utils import translation

from loadtest.charts import source, timeline, timeline_data
from loadtest.scenarios import SCENARIOS, export
from tests.loadtest.charts.drawn import SVG, event, parse, paused, texts, told


def test_story_tells_each_event_in_both_languages() -> None:
    assert told(paused()) == [
        "0.000 s Buyer A asks for the lock.",
        "0.100 s Buyer A is granted the lock.",
        "0.150 s Buyer A reads a stock of 1.",
        "0.200 s Buyer A is paused: all of its threads stop.",
        "0.300 s Buyer B asks for the lock.",
        "1.100 s The key of buyer A expires.",
        "1.100 s Buyer B is granted the lock.",
        "1.200 s Buyer B reads a stock of 1.",
        "1.500 s Buyer B writes a stock of 0.",
        "1.600 s Buyer B sends its release.",
        "2.200 s Buyer A continues where it stopped.",
        "2.300 s Buyer A writes a stock of 0. The row already said 0: one sale is not counted. "
        "That makes 2 sold of 1.",
        "2.400 s Buyer A sends its release.",
    ]
    with translation.override("zh-hans"):
        assert told(paused())[0] == "0.000 秒 买家 A 请求锁。"
        assert told(paused())[-2] == (
            "2.300 秒 买家 A 写入库存 0。此时库存行已是 0：有一件漏计。库存 1 件，已售出 2 件。"
        )
        assert texts(timeline.draw(paused()))[0] == "修复前：<redis>"


def test_story_of_an_excerpt_counts_what_was_sold_before() -> None:
    """25 of 50 units were sold; then others sold the rest between B's read and its write."""
    steps = [("A", "read", 25), ("B", "read", 25), ("A", "write", 24)]
    steps += [("C", "read", 24), ("C", "write", 0), ("B", "write", 24)]
    events = [
        event(at, f"buyer {who}", do, "ok", quantity=quantity)
        for at, (who, do, quantity) in enumerate(steps, 1)
    ]
    last = timeline.story({"events": events, "guard": "naive", "stock": 50})[-1].text
    assert last == (
        "Buyer B writes a stock of 24. The row already said 0: 25 sales are not counted. "
        "That makes 51 sold of 50."
    )
    others = {"events": [event(0, "other buyers", "read", "ok", quantity=24)]}
    assert told(others) == ["0.000 s One of the other buyers reads a stock of 24."]


def test_story_describes_the_picture_to_screen_readers() -> None:
    """The small pictures of a list have a title alone."""
    svg = parse(timeline.draw(paused()))
    assert (svg.findtext(f"{SVG}desc") or "").splitlines() == told(paused())
    assert parse(timeline.draw(paused(), is_brief=True)).find(f"{SVG}desc") is None


@pytest.mark.parametrize("name", SCENARIOS)
def test_story_of_a_recording_names_the_lines_of_the_source(name: str) -> None:
    """Each request of a process has its line of code; what the lab or a store does has none."""
    for variant in export.recorded()["results"][name]["halves"]:
        story = timeline.story(variant)
        assert [one.at for one in story] == sorted(one.at for one in story)
        places = [one.line for one in story if one.line and one.line.code]
        asked = [one for one in timeline_data.own(variant["events"]) if is_request(one)]
        if "conditional" in variant["guard"]:  # its write needs no read, and the story shows none
            asked = [one for one in asked if one["do"] != "read"]
        assert len(places) >= len(asked) > 0
        for line in places:
            file, _colon, number = line.place.partition(":")
            lines = (Path(settings.BASE_DIR) / file).read_text().splitlines()
            shown = " ".join(map(str.strip, lines[int(number) - 1 :]))
            assert shown.startswith(line.code)


def is_request(event: dict[str, Any]) -> bool:
    kind = event["do"], event.get("type", "")
    return (
        bool(event.get("code"))
        or kind[0] in ("read", "write")
        or kind in (("acquire", "invoke"), ("release", "invoke"))
    )


def test_every_line_of_the_source_is_found() -> None:
    """If this fails, a line was changed: update its part in loadtest/charts/source.toml."""
    tables = dict(source.LINES)
    for table in (*tables.pop("killed").values(), *tables.values()):
        for place in table.values():
            assert source.Excerpt(*place).lines()


@pytest.mark.parametrize(
    ("name", "half", "text", "code"),
    [
        ("release-before-commit", 0, "Buyer A sends its release.", "lease.backend.release("),
        ("release-before-commit", 1, "Buyer A sends its release.", "redis.call('DEL', lock"),
        ("delete-successors-lock", 1, "Buyer A sends its release.", "holder ~= caller"),
        ("failover-before-replication", 1, "Buyer A sends its release.", "redis.call('PEXPIRE'"),
        ("crash-between-redis-and-queue", 0, "Buyer A is killed.", "reach(RESERVED)"),
        ("crash-between-redis-and-queue", 1, "Consumer is killed.", 'reach("queued.read")'),
        ("payment-after-expiry", 0, "Database: 2 sold.", "order.save()"),
        ("forced-switch", 1, "Buyer A writes with a token of epoch 1. The row", "fence_epoch < %s"),
    ],
)
def test_decisive_event_has_the_line_that_causes_it(
    name: str, half: int, text: str, code: str
) -> None:
    story = timeline.story(export.recorded()["results"][name]["halves"][half])
    line = next(one.line for one in story if one.text.startswith(text))
    assert line is not None
    assert code in line.code


def said(name: str, half: int, part: str) -> list[str]:
    """Return the sentences of a recording that contain a part."""
    story = timeline.story(export.recorded()["results"][name]["halves"][half])
    return [one.text for one in story if part in one.text]


def test_lock_that_was_released_early_is_not_told_as_lost() -> None:
    assert said("release-before-commit", 0, "uyer A sends") == [
        "Buyer A sends its release.",
        "Buyer A sends its release again, at the end of its purchase.",
    ]
    refused = "The store refuses the release: buyer A no longer holds the lock."
    assert said("release-before-commit", 0, "no longer holds") == [refused]
    assert said("release-before-commit", 0, "notices") == []
    lost = "The watchdog of buyer A notices that the lock is lost."
    assert said("holder-paused", 0, "notices") == [lost]


@pytest.mark.parametrize("name", ["forced-switch", "holder-paused"])
def test_second_grant_after_a_refused_write_has_a_reason(name: str) -> None:
    assert said(name, 1, "uyer A is granted") == [
        "Buyer A is granted the lock, with token #1.",
        "Buyer A is granted the lock, with token #3, only to check that new tokens are higher than "
        "that of the row.",
        "Buyer A is granted the lock, with token #4.",
    ]
