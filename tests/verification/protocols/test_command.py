"""`manage.py verify models`: its report, its exit codes and the page that it writes."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from tests.loadtest.lab import verify
from verification.cli.models import PART
from verification.protocols.search import TEXTS


def test_report_has_verdicts_and_traces() -> None:
    found, code = verify("models", "switch")
    rows = {row["variant"]: row for row in found["models"]}
    assert code == 0
    assert rows["drained"]["verdict"] == "no violation"
    assert rows["drained"]["trace"] == []
    broken = rows["forced-naive"]
    assert broken["verdict"] == f'breaks "never oversold" at step {len(broken["trace"])}'
    assert broken["scenario"] == "switch-under-load"
    assert broken["trace"][-1] == {"action": "Write", "text": "B writes the quantity 0."}


def test_text_has_one_sentence_for_each_step() -> None:
    out = io.StringIO()
    call_command("verify", "models", "switch", stdout=out)
    printed = out.getvalue()
    assert re.search(r"^switch, drained: no violation, [\d,]+ states\. ", printed, re.M)
    assert "\n  1. The switcher takes the time and sends the announcement.\n  2. " in printed


def test_unexpected_verdict_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS["switch"]["variants"]["drained"], "breaks", "one holder")
    found, code = verify("models", "switch")
    assert code == 1
    assert [row["variant"] for row in found["models"] if not row["is_expected"]] == ["drained"]


def test_unknown_name_is_refused() -> None:
    with pytest.raises(CommandError, match=r"Unknown model 'swich'\. Did you mean 'switch'") as bad:
        call_command("verify", "models", "swich")
    assert bad.value.returncode == 2


def test_page_without_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing")
    with pytest.raises(CommandError, match=r"--write: .* has no place between"):
        call_command("verify", "models", "switch", write=page)


def test_table_is_written_between_the_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n<!-- {PART} -->\nstale\n<!-- /{PART} -->\nafter\n")
    call_command("verify", "models", "switch", write=page, stdout=io.StringIO())
    text = page.read_text()
    assert text.startswith(f"before\n<!-- {PART} -->\n\n| model | variant | states | verdict |")
    assert re.search(r"^\| switch \| drained \| \d+ \| no violation \|$", text, re.M)
    assert "stale" not in text
    assert text.endswith("after\n")
