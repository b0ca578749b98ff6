"""The output of `manage.py lab` for people: verdicts, tables and progress."""

import io
import re

import pytest
from django.core.management import call_command

from loadtest.kernel.terminal import Bar
from loadtest.load import report


def printed(*options: str) -> tuple[str, int]:
    out, code = io.StringIO(), 0
    try:
        call_command("lab", "run", *options, stdout=out, force_color=True)
    except SystemExit as ended:
        code = int(ended.code or 0)
    return out.getvalue(), code


def test_verdicts_say_what_was_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    text, code = printed("--backend=none", "--backend=redis", "--buyers=60", "--stock=10")
    assert re.search(r"none \+ naive .*\x1b\[32;1moversold, as expected\x1b", text)
    assert re.search(r"redis \+ naive .*\x1b\[32;1mexact, as expected\x1b", text)
    plain = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert max(map(len, plain.split("\n\n")[1].splitlines())) <= 80
    assert code == 0
    monkeypatch.setattr(report, "met", lambda run: False)
    text, code = printed("--backend=none", "--buyers=20", "--stock=5")
    assert re.search(r"\x1b\[31;1moversold: unexpected\x1b", text), "red"
    assert code == 1


def test_scenario_without_a_name_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        call_command("lab", "scenario")
    assert ended.value.code == 2
    assert "Example: manage.py lab scenario holder-paused" in capsys.readouterr().out


def test_time_left_is_estimated_anew_for_each_step() -> None:
    """rich reports 0:00:00 for a bar that was full once, even if it is no longer."""
    with Bar(disable=True) as bar:
        for what, done in (("signing in", 40), ("sending", 0), ("sending", 10)):
            bar.draw(what, done, 40)
        assert bar.tasks[0].time_remaining != 0
