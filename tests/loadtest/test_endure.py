"""`lab endure`: a shop that is restarted under load, and a soak, on a small scale."""

from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.purchase.client import HUNG_UP

pytestmark = pytest.mark.long


def endure(*words: str) -> dict[str, Any]:
    out = io.StringIO()
    with suppress(SystemExit):  # 1, when the verdict is not ok
        call_command("lab", "endure", *words, "--json", stdout=out)
    report: dict[str, Any] = json.loads(out.getvalue())
    return report


def test_restarts_lose_nothing() -> None:
    # A restart takes 4 s: the rush must not be over before the second.
    report = endure("restarts", "--attempts=10000", "--stock=200")
    assert report["verdict"] == "ok", report["breaches"]
    assert (report["orders"], report["restarts"]) == (200, 2)
    assert report["answers"][HUNG_UP]["count"] > 0


def test_a_soak_leaves_nothing_over() -> None:
    """So short, memory has not settled; what is counted must be as it was."""
    report = endure("soak", "--seconds=20")
    assert not [one for one in report["breaches"] if not one.startswith("kb")]
    assert report["end"]["locks"] == 0
    assert set(report["answers"]) <= {"200", "201", "303", "503"}


@pytest.mark.parametrize("words", [["--seconds=1", "soak"], ["--attempts=0", "restarts"]])
def test_bad_arguments(words: list[str]) -> None:
    with pytest.raises(CommandError, match="is not within"):
        endure(*words)
