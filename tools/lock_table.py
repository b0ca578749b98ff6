"""Write the tables of backends: properties in docs/reference/locks.md, failures in the READMEs.

.venv/bin/python tools/lock_table.py
"""

import os
import sys
from pathlib import Path

import django
from django.utils.translation import gettext as _
from django.utils.translation import override

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
django.setup()  # before the imports: the library reads the settings, and they import the library
PAGE = ROOT / "docs/reference/locks.md"
PART = "lock_table"
SUMMARY = "lock_summary"
READMES = {"README.md": "en", "README.zh-CN.md": "zh-hans"}

from loadtest.bench.locks.properties import (  # noqa: E402
    FAILURES,
    HAND_OFF,
    LOCK,
    OUTCOMES,
    capabilities,
    figures,
    outcome,
)
from loadtest.kernel import marked  # noqa: E402
from locking.claims import PROPERTIES  # noqa: E402


def summary(language: str) -> str:
    """Return what each lock between machines does in four failures, and its measured hand-off."""
    with override(language):
        rows = [
            (
                f"`{alias}`",
                *(_(OUTCOMES[outcome(declared, failure)]) for failure in FAILURES),
                figures(alias)["hand-off p50 ms"],
            )
            for alias, declared in capabilities().items()
            if declared.exclusion == "machines"
        ]
        return marked.table(map(_, (LOCK, *FAILURES.values(), HAND_OFF)), rows)


def markdown() -> str:
    """Return the table of properties as Markdown."""
    rows = []
    for alias, declared in capabilities().items():
        marks = ("yes" if getattr(declared, name) else "-" for name in PROPERTIES)
        rows.append([f"`{alias}`", declared.exclusion, *marks])
    return marked.table(["backend", "excludes", *PROPERTIES.values()], rows)


if __name__ == "__main__":
    marked.write(PAGE, PART, markdown())
    for name, language in READMES.items():
        marked.write(ROOT / name, SUMMARY, summary(language))
