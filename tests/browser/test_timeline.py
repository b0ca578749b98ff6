"""Playback of timelines in a real Chromium: keys, buttons, cursor, sentence, code, stock row."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from loadtest.charts import timeline
from loadtest.scenarios import SCENARIOS, export

FENCE = "/learn/fence/"
"""Two recordings, each with a player."""


def recorded(name: str = "holder-paused") -> list[list[timeline.Sentence]]:
    variants = export.recorded()["results"][name]["halves"]
    return [timeline.story(variant) for variant in variants]


def test_arrow_keys_step_from_event_to_event(people):
    page = people()
    page.goto(FENCE)
    player = page.locator("[data-player]").first
    now, picture = player.locator(".now"), player.locator(".scroll").first
    expect(player.locator(".keys")).to_contain_text("The arrow keys step")
    cursor = player.locator("svg > g:first-of-type > .cursor").first
    expect(cursor).to_have_attribute("visibility", "hidden")  # at rest
    broken, repaired = recorded()
    picture.focus()
    ring = picture.evaluate("one => getComputedStyle(one).outlineStyle")
    assert ring == "solid"
    page.keyboard.press("Home")
    for step, sentence in enumerate(broken[:6]):  # those of the focused picture only
        if step:
            page.keyboard.press("ArrowRight")
        expect(now).to_contain_text(sentence.text)
        expect(player.locator("input")).to_have_value(str(sentence.at))
    page.keyboard.press("ArrowLeft")
    expect(now).to_contain_text(broken[4].text)
    expect(cursor).to_have_attribute("visibility", "visible")
    player.locator(".scroll").nth(1).focus()
    page.keyboard.press("Home")
    expect(now).to_contain_text(repaired[0].text)
    page.keyboard.press("ArrowRight")
    expect(player.locator("input")).to_have_value(str(repaired[1].at))
    player.locator("input").focus()  # those of both
    page.keyboard.press("End")
    expect(now).to_contain_text(max((*broken, *repaired), key=lambda one: one.at).text)
    last = player.locator("[aria-current=step]")
    expect(last).to_have_count(2)
    assert [one.text_content() for one in last.all()] == [
        f"{story[-1].time} {story[-1].text}" for story in (broken, repaired)
    ]
    expect(player.locator("output").first).to_have_text("0 → 0: 2 of 1 sold")
    page.keyboard.press("Home")
    expect(now).to_contain_text(min((*broken, *repaired), key=lambda one: one.at).text)
    expect(player.locator("output").first).to_have_text("1")
    other = page.locator("[data-player]").nth(1)
    expect(other.locator("[aria-current]").first).to_be_attached()


def test_each_process_shows_its_line_of_code(people):
    page = people()
    page.goto(FENCE)
    figure = page.locator("[data-player] figure").first
    line = figure.locator(".state li", has_text=re.compile("^Buyer A|^buyer A")).first
    expect(line.locator("code")).not_to_have_text("")
    figure.locator(".scroll").focus()
    code = ""
    [story, _repaired] = recorded()
    read = next(one for one in story if one.line and "rows.get" in one.line.code)
    assert read.line is not None
    for _step in range(40):
        page.keyboard.press("ArrowRight")
        code = line.locator("code").text_content() or ""
        if code == read.line.code:
            break
    assert code == read.line.code
    expect(line.locator("small")).to_have_text(read.line.place)
    expect(figure.locator("output")).to_have_text("1")
    page.keyboard.press("End")
    expect(line.locator("code")).to_have_text("")


def test_playback_runs_and_pauses_by_button_and_space(people):
    page = people()
    page.clock.install()
    page.goto(FENCE)
    player = page.locator("[data-player]").first
    current = player.locator("[aria-current=step]")
    player.get_by_role("button", name="Play").click()
    expect(player.get_by_role("button", name="Pause")).to_be_visible()
    expect(current).to_have_count(2)
    first = player.locator(".now").text_content()
    page.clock.run_for(1600)
    expect(player.locator(".now")).not_to_have_text(first or "")
    player.locator(".scroll").first.focus()
    page.keyboard.press("Space")
    expect(player.get_by_role("button", name="Play")).to_be_visible()
    stopped = player.locator(".now").text_content()
    page.clock.run_for(10_000)
    expect(player.locator(".now")).to_have_text(stopped or "")
    page.keyboard.press("Space")
    page.clock.run_for(120_000)
    expect(player.get_by_role("button", name="Play")).to_be_visible()
    assert player.locator("input").input_value() == str(
        max(one.at for story in recorded() for one in story)
    )


def test_exported_file_plays_without_a_server(people, tmp_path):
    name = next(iter(SCENARIOS))
    report = export.recorded()
    result = {**report, "scenarios": [report["results"][name]]}
    html = export.as_file(result, "html").decode()
    [story, _repaired] = recorded(name)
    file = tmp_path / "scenario.html"
    file.write_text(html)
    page = people()
    page.goto(file.as_uri())
    page.locator(".scroll").first.focus()
    page.keyboard.press("End")
    expect(page.locator("[aria-current=step]").first).to_contain_text(story[-1].text)
