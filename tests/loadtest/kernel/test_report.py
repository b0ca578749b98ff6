"""Medians of rounds, the targets that they meet or miss, and the tables of commands."""

from io import StringIO
from typing import Any

import pytest

from loadtest.kernel.report import Target, met, summary
from loadtest.kernel.terminal import Terminal
from loadtest.management.commands.lab import Command


def line(*rounds: dict[str, Any]) -> dict[str, Any]:
    return {"rounds": list(rounds), **summary(rounds, {"wait"})}


def test_figures_are_medians_worst_ones_maxima_counts_sums_and_lists_joined() -> None:
    rounds = [
        {"rate": rate, "wait": rate, "answers": {"ok": 1}, "wrong": wrong}
        for rate, wrong in ((9.0, ["late"]), (1.0, ["late"]), (2.0, []))
    ]
    assert summary([*rounds, {}], {"wait"}) == {
        "rate": 2.0,
        "wait": 9.0,
        "answers": {"ok": 3},
        "wrong": ["late"],
    }


@pytest.mark.parametrize(
    ("target", "value", "is_met"),
    [
        (Target("t", "us", "rate", ">=", 400), 400, True),
        (Target("t", "us", "rate", "<=", 399), 400, False),
        (Target("t", "us", "rate", "=", 400), 400, True),
        (Target("t", "us", "cpu", "<=", 1), None, None),
        (Target("t", "nobody", "rate", "<=", 1), None, None),
        # 500/100, 400/50 and 90/100: the load of the third round concerns both.
        (Target("t", "us", "rate", ">=", 4.5, "them"), 5.0, True),
        (Target("t", "us", "rate", ">=", 4.5, "nobody"), None, None),
    ],
)
def test_target(target: Target, value: float | None, is_met: bool | None) -> None:
    lines = {
        "us": line({"rate": 500}, {"rate": 400}, {"rate": 90}),
        "them": line({"rate": 100}, {"rate": 50}, {"rate": 100}),
    }
    text = f"t {target.sign} {target.limit:g}"
    assert met([target], lines) == [{"target": text, "value": value, "met": is_met}]


def test_table_aligns_numbers_and_gives_a_file_whole_lines() -> None:
    rows = [["redis", "12", "1.5 ms", "ok"], [], ["short"], ["database", "7", "", "so " * 60]]
    Terminal(Command(stdout=(out := StringIO()))).table(("lock", "units", "p50", ""), rows)
    assert out.getvalue().splitlines()[2:] == [
        "redis         12   1.5 ms   ok",
        "",
        "short",
        "database       7            " + "so " * 59 + "so",
        "",
    ]


def test_narrow_terminal_folds_words_but_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr(out := StringIO(), "isatty", lambda: True)
    rows = [["[b] 中文", "12,345.67", "1,234 ms"]]
    Terminal(Command(stdout=out)).table(("[lock]", "[x]", "p50"), rows)
    lines = [line.split() for line in out.getvalue().splitlines() if "─" not in line]
    assert lines == [["[lock]", "[x]", "p50"], ["[b]", "12,345.67", "1,234", "ms"], ["中文"], []]
