"""The table of docs/reference/mutants.md, written by the tests that find the mutants.

MUTANTS_PAGE=docs/reference/mutants.md .venv/bin/pytest tests/verification/mutants
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from loadtest.kernel import marked

PART = "mutants"
_rows: list[list[str]] = []


def found_by(name: str, what: str, judge: str, began: float) -> None:
    """Add a row for a mutant that was found since the monotonic time `began`; write the page."""
    _rows.append([f"`{name}`", what, judge, f"{time.monotonic() - began:.1f}"])
    if page := os.environ.get("MUTANTS_PAGE"):
        columns = ("mutant", "differs from the lock", "found by", "seconds")
        marked.write(Path(page), PART, f"\n{marked.table(columns, _rows)}\n")
