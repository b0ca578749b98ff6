"""The Markdown pages of the repository and the code blocks in them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
HISTORY = [ROOT / "CHANGELOG.md", *sorted((DOCS / "adr").glob("*.md"))]
"""These name things that no longer exist."""
CURRENT = [
    *sorted(ROOT.glob("README*.md")),
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests/README.md",
    ROOT / "locking/README.md",
    *sorted(set(DOCS.rglob("*.md")) - set(HISTORY)),
]
PAGES = [*CURRENT, *HISTORY]
FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """One fenced code block."""

    page: str
    language: str
    code: str
    line: int

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


def without_blocks(text: str) -> str:
    """Return the running text of a page."""
    return FENCE.sub("", text)


def without_values(text: str) -> str:
    """Return the text with equal spaces, numbers and owners."""
    text = re.sub(r"\S+:\d+:[0-9a-f]+:[0-9a-f]+-[0-9a-f]+", "OWNER", text)
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(text.split()))


def blocks_of(text: str, page: str = "") -> list[Block]:
    """Return the code blocks of a page."""
    return [
        Block(page, found[2], textwrap.dedent(found[3]), text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text)
    ]


def indented_code(text: str) -> list[str]:
    """Return the lines of code blocks without a language, which no test would run."""
    return re.findall(r"\n\n( {4,}\S.*)", without_blocks(text))


BLOCKS = [block for page in PAGES for block in blocks_of(page.read_text(), page_id(page))]
