"""The pages of the game: forms without script, parts for htmx, errors that change nothing."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.test import Client
from django.urls import reverse

from loadtest.game import client as games
from tests.loadtest.game.places import own_places  # noqa: F401 - a fixture

HTMX = {"HX-Request": "true"}


@pytest.fixture(scope="module")
def started() -> Iterator[UUID]:
    game = games.start("race")
    yield game
    games.ask(game, "end")


@pytest.fixture
def game(started: UUID) -> UUID:
    games.ask(started, "begin", level="race", guarded=False)
    return started


def act(client: Client, game: UUID, action: str, turn: object, **extra: Any) -> Any:
    return client.post(reverse("game-act", args=[game]), {"action": action, "turn": turn}, **extra)


def test_visitor_plays_without_script(client: Client, db: None, game: UUID) -> None:
    page = reverse("game", args=[game])
    assert "Every buyer has pressed Buy" in client.get(page).text
    for turn, buyer in enumerate("AABBBA"):
        response = act(client, game, f"{buyer}-step", turn)
        assert (response.status_code, response["Location"]) == (302, page)
    text = client.get(page).text
    assert "You did it." in text
    assert "Both buyers read the same number" in text
    assert "2 sold of 1" in text
    assert 'value="expire">Next level: SETNX, then EXPIRE' in text
    assert 'data-won="race"' in text
    assert "Let both buyers read the stock before" in text
    undo = client.post(reverse("game-act", args=[game]), {"undo": "1", "turn": "6"})
    assert (undo.status_code, undo["Location"]) == (302, page)
    text = client.get(page).text
    assert "1 sold of 1" in text
    assert "You did it." not in text


def test_current_lines_are_marked(client: Client, db: None, game: UUID) -> None:
    text = act(client, game, "A-step", 0, headers=HTMX).text
    columns = text.split('<strong class="chip">')[1:]
    for column, line in zip(
        columns, ("reading = claim_stock(", "with lock as lease:"), strict=True
    ):
        assert column.count("<mark>") == 1
        assert f"<mark>{line}" in column
    assert 'class="reads"' in text
    assert 'id="latest" hx-swap-oob="innerHTML">Buyer A goes on at once: there is no lock.' in text
    assert "<html" not in text


def test_step_that_is_sent_twice_changes_nothing(client: Client, db: None, game: UUID) -> None:
    assert act(client, game, "A-step", 0).status_code == 302
    again = act(client, game, "A-step", 0)
    assert again.status_code == 409
    assert reverse("game", args=[game]) in again.text
    part = act(client, game, "A-step", 0, headers=HTMX)
    assert part.status_code == 200
    assert "That move is no longer possible" in part.text
    assert games.ask(game, "state")["turn"] == 1


def test_guard_is_claimed_to_hold_only_after_all_orders(
    client: Client, db: None, game: UUID, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    monkeypatch.setattr("loadtest.game.levels.RESULTS", results)
    found = {"runs": 1240, "is_complete": True, "violations": 0}
    for counts, words in (
        (found, "All 1,240 orderings"),
        (found | {"is_complete": False}, "Unknown"),
        (found | {"violations": 1}, "Unknown"),
    ):
        results.write_text(json.dumps({"game/race": counts}))
        form = {"level": "race", "guarded": "1"}
        assert words in client.post(reverse("game-act", args=[game]), form, headers=HTMX).text


@pytest.mark.parametrize(
    ("form", "status"),
    [
        ({"level": "earthquake"}, 400),
        ({"action": "A-step", "turn": "x"}, 400),
        ({"undo": "1", "turn": ""}, 400),
        ({"undo": "1", "turn": "0"}, 409),
        ({"action": "A-fly", "turn": "0"}, 409),
        ({"action": "Z-step", "turn": "0"}, 409),
        ({"action": "A-pause", "turn": "0"}, 409),
        ({}, 400),
    ],
)
def test_unknown_request_changes_nothing(
    client: Client, db: None, game: UUID, form: dict[str, str], status: int
) -> None:
    assert client.post(reverse("game-act", args=[game]), form).status_code == status
    assert client.post(reverse("game-start", args=["earthquake"])).status_code == 404
    assert games.ask(game, "state")["turn"] == 0


def test_ended_game_has_a_clear_page(client: Client, db: None) -> None:
    response = client.get(reverse("game", args=[uuid4()]))
    assert response.status_code == 404
    assert "This game has ended" in response.text
    assert reverse("learn") in response.text


def test_starts_are_limited_per_address(client: Client, db: None, settings, monkeypatch) -> None:
    settings.LAB_GUEST_LIMIT = "1/minute"
    monkeypatch.setattr(games, "GAMES", 0)
    start = reverse("game-start", args=["race"])
    assert "Eight visitors are playing" in client.post(start, REMOTE_ADDR="192.0.2.77").text
    assert "Too many attempts" in client.post(start, REMOTE_ADDR="192.0.2.77").text


def test_step_of_a_game_needs_a_csrf_token(db: None, game: UUID) -> None:
    stranger = Client(enforce_csrf_checks=True)
    assert stranger.post(reverse("game-act", args=[game])).status_code == 403
