"""The tutorial can be replayed: its commands print what the page shows."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import BLOCKS, ROOT, Block, without_values

PAGE = "docs/tutorial/first-oversell.md"
REPLAYED = ("lab run", "lab scenario")


def shown_after(command: str) -> list[str]:
    """Return the lines of output that the page shows between this command and the next one."""
    blocks = [block for block in BLOCKS if block.page == PAGE]
    following = blocks[blocks.index(block_with(command)) + 1 :]
    shown: list[str] = []
    for block in following:
        if block.language != "text":
            break
        if not is_diagram(block.code):
            shown += block.code.splitlines()
    return shown


def block_with(command: str) -> Block:
    return next(block for block in BLOCKS if block.page == PAGE and command in block.code)


def is_diagram(code: str) -> bool:
    return code.startswith("buyer A  ")


@pytest.mark.parametrize("command", REPLAYED)
def test_commands_print_what_the_tutorial_shows(command: str, tmp_path: Path) -> None:
    shown = shown_after(command)
    assert shown
    words = shlex.split(block_with(command).code)
    done = subprocess.run(
        [sys.executable, *words[1:]],
        cwd=ROOT,
        env={**os.environ, "SHOP_VAR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    for line in shown:
        assert without_values(line) in without_values(done.stdout), "a race has no fixed result"


def test_control_other_words_are_found() -> None:
    assert without_values("sold 200  of 50.") == without_values("sold 198 of\n50.")
    assert without_values("With Redis: exactly 50.") not in without_values("With Redis: 74 of 50.")
