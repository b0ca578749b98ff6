"""The generated reference of the library is current and complete."""

import re

import pytest

import locking
from loadtest.kernel import marked
from tests.docs import check_page
from tests.docs.pages import ROOT
from tools.library_reference import NAMES, PAGE, PARTS


@pytest.mark.parametrize("part", PARTS)
def test_part_matches_the_code(part: str) -> None:
    before, after = marked.around(PAGE, part)
    assert PAGE.read_text() == before + PARTS[part]() + after, "run: -m tools.library_reference"


def test_checks_match_their_messages(db: None) -> None:
    before, after = marked.around(PAGE, check_page.PART)
    expected = before + check_page.markdown() + after
    assert PAGE.read_text() == expected, "run: -m tests.docs.check_page"


def test_every_check_and_error_has_an_anchor() -> None:
    sources = "".join(file.read_text() for file in (ROOT / "locking").rglob("*.py"))
    anchors = set(re.findall(r'<a id="([^"]+)">', PAGE.read_text()))
    numbers = set(re.findall(r'"(?:locking\.)?([EW]0\d\d)"', sources))
    assert len(numbers) > 20
    assert {f"locking-{number.lower()}" for number in numbers} <= anchors
    errors = [name for name in locking.__all__ if name.startswith(("Lock", "Key", "Idem"))]
    assert {name.lower() for name in errors} - {"lock"} <= anchors


def test_every_public_name_is_described() -> None:
    text = PAGE.read_text()
    missing = [name for name in locking.__all__ if f"`{name}`" not in text and name not in NAMES]
    assert missing == []


def test_page_about_peers_quotes_the_measurements() -> None:
    page = (ROOT / "docs/library/when-to-choose-a-peer.md").read_text()
    measured = (ROOT / "docs/measurements/locks.md").read_text()
    for lock in (r"\*\*redis\*\*", "redis-py Lock"):
        found = re.search(rf"^\| {lock} \| \d+ \| ([\d.]+) \| (\d+)", measured, re.M)
        assert found
        assert found[1] in page, "the ratio to the floor"
        assert f"{found[2]} ms" in " ".join(page.split()), "the wave"
