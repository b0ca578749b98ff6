"""The output of `manage.py lab` for people: verdicts, tables and progress."""

import io
import re

import pytest
from django.core.management import call_command

from loadtest.cli import run
from loadtest.kernel.terminal import Bar
from loadtest.load import report


def test_verdicts_say_what_was_expected() -> None:
    out = io.StringIO()
    options = ["--backend=none", "--backend=redis", "--buyers=60", "--stock=10"]
    call_command("lab", "run", *options, stdout=out, force_color=True)
    printed = out.getvalue()
    assert re.search(r"none \+ naive .*\x1b\[32;1moversold, as expected\x1b", printed)
    assert re.search(r"redis \+ naive .*\x1b\[32;1mexact, as expected\x1b", printed)
    plain = re.sub(r"\x1b\[[\d;]*m", "", printed)
    assert max(map(len, plain.split("\n\n")[1].splitlines())) <= 80


def test_unexpected_verdict_is_red_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "met", lambda run: False)
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command(
            *("lab", "run", "--backend=none", "--buyers=20", "--stock=5"),
            stdout=out,
            force_color=True,
        )
    assert ended.value.code == 1
    assert re.search(r"\x1b\[31;1moversold: unexpected\x1b", out.getvalue())


def test_scenario_without_a_name_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("lab", "scenario")
    assert ended.value.code == 2
    assert "Example: manage.py lab scenario holder-paused" in capsys.readouterr().out


def test_columns_fit_a_terminal() -> None:
    longest = (
        "redis + conditional",
        "1000/1000",
        "12345",
        "1234/2345/3456",
        "oversold, as expected",
    )
    assert len("  ".join(longest)) <= 80
    assert len(run.COLUMNS) == len(longest)


def test_time_left_is_estimated_anew_for_each_step() -> None:
    """rich reports 0:00:00 for a bar that was full once, even if it is no longer."""
    with Bar(disable=True) as bar:
        bar.draw("signing in", 40, 40)
        assert bar.tasks[0].finished
        bar.draw("sending", 0, 40)
        bar.draw("sending", 10, 40)
        assert not bar.tasks[0].finished
        assert bar.tasks[0].time_remaining != 0
        assert bar.tasks[0].percentage == 25
    assert bar.tasks[0].percentage == 100


def test_bar_of_an_interrupted_command_is_not_filled() -> None:
    bar = Bar(disable=True)

    def interrupt() -> None:
        with bar:
            bar.draw("sending", 10, 40)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert bar.tasks[0].percentage == 25
