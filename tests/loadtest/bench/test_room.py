"""`manage.py lab bench room`: a small run on real servers, and its clients."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.core.management import CommandError

from loadtest.bench.room import report
from loadtest.bench.room.clients import Clients
from tests.loadtest.lab import lab

PEOPLE = 200
POLL = b"GET /status HTTP/1.1\r\nHost: room\r\n\r\n"


def test_small_run_on_real_servers() -> None:
    found, code = lab("bench", "room", f"--people={PEOPLE}")
    assert (found["missing"], found["breaches"], code) == ({}, [], 0)
    figures = found["figures"]
    assert figures.keys() == report.FIGURES.keys()
    assert figures["places_lost"] == 0
    assert 0 < figures["bytes_per_person"] <= 300
    assert min(figures[name] for name in figures if name.endswith("per_second")) > 0
    assert all(target["met"] is not None for target in found["targets"])
    headings, rows = report.table(found)
    assert all(len(row) == len(headings) for row in rows)
    assert report.markdown(found).count("|\n") == len(report.FIGURES) + 2


def test_missing_server_and_breach_are_unsound() -> None:
    sound: dict[str, Any] = {"missing": {}, "breaches": []}
    assert report.is_sound(sound)
    assert not report.is_sound(sound | {"breaches": ["rush: 21 orders for 20 units"]})
    assert not report.is_sound(sound | {"missing": {"redis": "not installed"}})


@pytest.mark.parametrize("option", ["--people=99", "--people=0", "--rounds=2"])
def test_bad_sizes_are_refused(option: str) -> None:
    with pytest.raises(CommandError, match=option.strip("-").partition("=")[0]):
        lab("bench", "room", option)


class Room(BaseHTTPRequestHandler):
    """A room that admits one more person with each poll, until all units are sold."""

    protocol_version = "HTTP/1.1"
    units, bought, serving, closes, refuses = 5, 0, 0, False, 2
    counting = threading.Lock()

    def do_GET(self) -> None:
        with self.counting:
            Room.serving += 1
            state = "open" if Room.bought < Room.units else "sold_out"
            served = Room.serving if state == "open" else Room.units
        self.answer({"state": state, "serving": served})

    def do_POST(self) -> None:
        with self.counting:
            is_refused = Room.refuses > 0
            Room.refuses -= is_refused
            Room.bought += not is_refused
        self.answer({"error": "busy"}, 503 if is_refused else 200)

    def answer(self, body: dict[str, Any], status: int = 200) -> None:
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        if Room.closes:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@pytest.fixture
def port() -> Iterator[int]:
    Room.bought, Room.serving, Room.refuses = 0, 0, 2
    with ThreadingHTTPServer(("127.0.0.1", 0), Room) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.parametrize("closes", [False, True])
def test_clients_buy_at_their_turn_and_the_others_learn_of_the_end(
    port: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "closes", closes)
    forms = [b"POST /buy HTTP/1.1\r\nHost: room\r\nContent-Length: 0\r\n\r\n"] * Room.units
    clients = Clients(port, POLL, forms, size=12)
    seen = clients.wait(interval=0.2, seconds=20)
    assert seen.waiting == set()
    assert (len(seen.bought), seen.refusals) == (Room.units, {"busy": 2})
    assert all(seen.sent[client] < at for client, at in seen.bought.items())
    assert Room.bought == Room.units
    assert seen.began < seen.informed


def test_clients_that_never_learn_of_the_end_are_counted(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "do_GET", lambda self: self.answer({"state": "open", "serving": 0}))
    seen = Clients(port, POLL, [], size=3).wait(interval=0.1, seconds=0.5)
    assert seen.waiting == {0, 1, 2}
    assert seen.states["open"] >= 3
