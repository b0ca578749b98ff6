"""`manage.py lab` as tests give it, and the processes that it leaves or does not."""

import contextlib
import io
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.utils import translation

from loadtest.load import report


def lab(what: str, *options: str, command: str = "lab") -> tuple[Any, int]:
    """The report of `lab <what> --json` or another command, and the exit code."""
    out, code = io.StringIO(), 0
    try:
        call_command(command, what, "--json", *options, stdout=out)
    except SystemExit as end:
        code = int(end.code or 0)
    return json.loads(out.getvalue()), code


verify = partial(lab, command="verify")


def guards(*names: str) -> list[str]:
    """The options that name these backends."""
    return [f"--backend={name}" for name in names]


def check_sum(run: dict[str, Any]) -> str:
    """Assert that the numbers that explain an oversold run add up; return the sentences."""
    with translation.override("en"):
        text = report.explain(run)
    pair, total = text.split("In this run, ")
    pair, _all, others = pair.partition("Of all writes, ")
    if "raised the stock" in pair:
        match = re.search(r"(\d+)\. B .* wrote (\d+): this sale raised the stock by (\d+)", pair)
        assert match, pair
        found, second_left, back = map(int, match.groups())
        assert back == second_left - found > 0
    else:
        read, first, first_left, second, second_left, both, down = map(
            int, re.findall(r"\d+", pair)
        )
        assert first == read - first_left
        assert second == down == read - second_left
        assert both == first + second
    sold, counted, missing = map(int, re.findall(r"\d+", total))
    assert sold == run["sold"]
    assert missing == sold - counted > 0
    if others:
        _times, put_back, taken_again = map(int, re.findall(r"\d+", others))
        assert put_back - taken_again == missing
    return text


def family(folder: Path) -> set[int]:
    """The processes that live somewhere in this folder."""
    found = set()
    for cwd in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if os.readlink(cwd).startswith(str(folder)):
                found.add(int(cwd.parent.name))
    return found
