"""`manage.py lab choose`: options, questions on a terminal, and errors."""

import io
import os
import pty
import re
import subprocess
import sys

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils import translation

from tests.loadtest.lab import lab


def test_recommendation_and_exit_code() -> None:
    found, code = lab("choose", "--have=redis", "--have=zookeeper", "--fence")
    assert (code, found["recommended"]["lock"]) == (0, "zookeeper")
    assert "manage.py lab run --backend zookeeper" in found["recommended"]["runs"][1]["command"]
    assert found["rejected"]["mysql_session"] == ["needs mysql"]
    found, code = lab("choose", "--have=redis", "--goal=efficiency")
    assert (code, found["recommended"]["lock"]) == (0, "redis")


def test_needs_that_no_lock_meets_are_said_so() -> None:
    """A paused holder writes late under every lock; only the data can reject its write."""
    out = io.StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("lab", "choose", "--have=redis", stdout=out)
    assert ended.value.code == 1
    assert "No lock meets all needs.\nLet the data check a fencing token" in out.getvalue()
    assert (
        "holder paused: its late write: rejected by the fence; the data checks no token"
        in out.getvalue()
    )


def test_text_names_cost_runs_and_rejected_locks() -> None:
    out = io.StringIO()
    with translation.override("en"):
        call_command("lab", "choose", "--have=redis", "--fence", "--quick", stdout=out)
    printed = out.getvalue()
    assert printed.startswith("Recommended: redis. One Redis")
    assert "pairs/s" in printed
    assert "The holder is paused:\n  manage.py lab scenario holder-paused" in printed
    assert "needs zookeeper" in printed
    out = io.StringIO()
    call_command("lab", "choose", "--have=process", stdout=out)
    assert "Cost: not measured (" in out.getvalue()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ([], "Name what you have with --have: process, mysql"),
        (["--have=redos"], "Unknown --have 'redos'. Did you mean 'redis'?"),
        (["--have=redis", "--survive=earthquake"], "Unknown --survive 'earthquake'"),
        (["--have=redis", "--goal=both"], "Unknown --goal 'both'"),
    ],
)
def test_bad_input_is_refused(options: list[str], error: str) -> None:
    with pytest.raises(CommandError, match=re.escape(error)) as refused:
        call_command("lab", "choose", *options)
    assert refused.value.returncode == 2


def answer(text: bytes) -> tuple[str, int]:
    """Return the output and the exit code of `lab choose` on a terminal that types `text`."""
    ours, its = pty.openpty()
    os.write(ours, text)
    command = [sys.executable, "manage.py", "lab", "choose"]
    done = subprocess.run(
        command, stdin=its, capture_output=True, text=True, cwd=settings.BASE_DIR, timeout=60
    )
    os.close(ours)
    os.close(its)
    return done.stdout + done.stderr, done.returncode


def test_questions_on_a_terminal() -> None:
    printed, code = answer(b"redis, zookeeper\nfailover\n\ny\ny\n")
    assert code == 0
    assert "Recommended: zookeeper." in printed
    printed, code = answer(b"redos\n\n\n\n\n")
    assert (code, "Did you mean 'redis'?" in printed) == (2, True)
    printed, code = answer(b"\n\n\n\n\n")
    assert (code, "Name what you have: process" in printed) == (2, True)
    printed, code = answer(b"redis\n\x04\x04")
    assert (code, "The input ended" in printed) == (2, True)
