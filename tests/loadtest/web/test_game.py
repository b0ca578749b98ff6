"""The page of the game: forms without script, parts for htmx, and moves that are not possible."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

pytestmark = pytest.mark.django_db
RACE = reverse("game", args=["race"])
HTMX = {"HX-Request": "true"}


def test_visitor_plays_without_script(client: Client) -> None:
    assert "Every buyer has pressed Buy" in client.get(RACE).text
    text, done = "", ""
    for buyer in "AABBBA":
        text = client.get(RACE, {"done": done, "action": f"{buyer}-step"}).text
        done = f"{done} {buyer}-step".strip()
        assert f'name="done" value="{done}"' in text
    assert "You did it." in text
    assert "Both buyers read the same number" in text
    assert "2 sold of 1" in text
    assert 'role="status">Buyer A writes a stock of 0. The row already said 0' in text
    assert f'href="{reverse("game", args=["expire"])}">Next level: SETNX, then EXPIRE' in text
    assert 'data-won="race"' in text
    assert "Let both buyers read the stock before" in text
    assert "Buyer B goes on at once: there is no lock." in text
    text = client.get(RACE, {"done": done, "undo": "1"}).text
    assert "1 sold of 1" in text
    assert "You did it." not in text


def test_last_level_leads_to_the_second_part_of_the_course(client: Client) -> None:
    """The buyer that has released the lock is not said to be about to."""
    done = "A-step A-step A-step B-step B-step B-step A-step B-step"
    text = client.get(reverse("game", args=["commit"]), {"done": done}).text
    assert "Go on with part 2" in text
    part = f'href="{reverse("learn")}#flash-sale"'
    assert part in text
    assert 'id="flash-sale"' in client.get(reverse("learn")).text
    assert "has committed, and is about to finish" in text
    assert "is about to release" not in text


def test_current_lines_are_marked(client: Client) -> None:
    text = client.get(RACE, {"action": "A-step"}, headers=HTMX).text
    columns = text.split('<strong class="chip">')[1:]
    for column, line in zip(
        columns, ("reading = claim_stock(", "with lock as lease:"), strict=True
    ):
        assert column.count("<mark>") == 1
        assert f"<mark>{line}" in column
    assert 'class="reads"' in text
    assert 'id="latest" hx-swap-oob="innerHTML">Buyer A goes on at once: there is no lock.' in text
    assert "<html" not in text
    assert "tabindex" not in text, "code that wraps is no stop for the Tab key"


def test_guard_is_claimed_to_hold_only_after_all_orders(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("loadtest.game.levels.RESULTS", results)
    for counts, words in (({}, "Unknown"), ({"race": 1240}, "All 1,240 orderings")):
        results.write_text(json.dumps(counts))
        assert words in client.get(RACE, {"guarded": "1"}, headers=HTMX).text
    chinese = HTMX | {"accept-language": "zh-hans"}
    assert "1,240" in client.get(RACE, {"guarded": "1"}, headers=chinese).text


@pytest.mark.parametrize(
    "form",
    [
        {"action": "A-fly"},
        {"action": "Z-step"},
        {"action": "A-pause"},
        {"done": "A-step" + 3 * " B-step", "action": "B-step", "guarded": "1"},
    ],
)
def test_move_that_is_not_possible_is_refused(client: Client, form: dict[str, Any]) -> None:
    assert client.get(RACE, form).status_code == 400


def test_unknown_level_is_not_found(client: Client) -> None:
    assert client.get(reverse("game", args=["earthquake"])).status_code == 404
