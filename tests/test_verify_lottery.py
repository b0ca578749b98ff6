"""The script with which a visitor draws a lottery again; it needs nothing of the project."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tools.verify_lottery import draw, main
from waiting_room.models import Room
from waiting_room.tickets import root_of, shuffle, ticket_of

SCRIPT = Path(__file__).resolve().parent.parent / "tools" / "verify_lottery.py"
Record = dict[str, Any]
Verify = Callable[..., tuple[int, str]]
EARLIER = {
    "commitment": Room(seed="ab" * 32).commitment,
    "seed": "ab" * 32,
    "root": None,
    "reset_at": "2026-11-24T10:00:00+00:00",
    "reason": "Redis was lost",
}


@pytest.fixture
def record() -> Record:
    """The record of a lottery, made with the code of the waiting room."""
    room = Room(seed="5e" * 32, ticket_key="aa" * 32)
    tickets = sorted(ticket_of(key=room.ticket_key, customer_id=one) for one in range(200))
    return {
        "sale": "spring",
        "mode": "lottery",
        "commitment": room.commitment,
        "root": root_of(tickets),
        "seed": room.seed,
        "list": tickets,
        "late": 3,
        "earlier": [EARLIER],
    }


@pytest.fixture
def verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Verify:
    """The script on a record: its exit code and its output."""

    def run(text: str, *arguments: str) -> tuple[int, str]:
        file = tmp_path / "record.json"
        file.write_text(text)
        code = main([str(file), *arguments])
        return code, capsys.readouterr().out

    return run


def test_script_needs_python_alone(tmp_path: Path, record: Record) -> None:
    (tmp_path / "record.json").write_text(json.dumps(record))
    command = [sys.executable, "-I", "-S", SCRIPT, "record.json"]
    assert programs.output(*command, cwd=tmp_path) == (
        "The room was reset at 2026-11-24T10:00:00+00:00: Redis was lost\n"
        "The lottery of 200 tickets is correct.\n"
    )


def test_script_draws_the_positions_of_the_waiting_room(verify: Verify, record: Record) -> None:
    drawn = shuffle(record["list"], seed=record["seed"], root=record["root"])
    assert drawn != record["list"]
    assert draw(record) == drawn
    for position in (1, 77, 200):
        ticket = drawn[position - 1]
        code, said = verify(json.dumps(record), ticket)
        assert (code, f"{ticket}: {position}\n" in said) == (0, True), said
    assert verify(json.dumps(record), "--commitment", record["commitment"])[0] == 0
    assert verify(json.dumps(record), "--commitment", "0" * 64)[0] == 1


TWICE = sorted([*"abcc"])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"seed": None}, "not drawn yet"),
        ({"seed": None, "root": None, "list": None}, "not drawn yet"),
        ({"mode": "arrival"}, "not the record of a lottery"),
        ({"commitment": "0" * 64}, "The commitment is not"),
        ({"seed": "5f" * 32}, "The commitment is not"),
        ({"root": "0" * 64}, "The root is not"),
        ({"list": ["0" * 16]}, "The root is not"),
        ({"earlier": [EARLIER | {"seed": "ac" * 32}]}, "of an earlier seed"),
        ({"list": TWICE, "root": root_of(TWICE)}, "twice"),
    ],
)
def test_record_that_proves_nothing_is_refused(
    verify: Verify, record: Record, change: Record, why: str
) -> None:
    code, said = verify(json.dumps(record | change))
    assert (code, why in said) == (1, True), said
