"""`make audit` and its softer turn in `make lint`: a weakness fails both, silence the first."""

import json
from subprocess import CompletedProcess

import pytest

from tools import audit

GOOD = {"name": "kazoo", "version": "1", "vulns": []}
WEAK = {**GOOD, "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "redis", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "codes", "said"),
    [
        ([GOOD, GOOD], [0, 0], "No weakness is known of 2 packages"),
        ([UNKNOWN, WEAK], [1, 1], "kazoo 1: CVE-1, mended in: 2"),
        ([GOOD, UNKNOWN], [1, 0], "NOT AUDITED: of 1 of 2 nothing is said; not found"),
        (None, [1, 0], "NOT AUDITED: no network"),
    ],
)
def test_what_each_answer_comes_to(packages, codes, said, monkeypatch, capsys) -> None:
    answer = "" if packages is None else json.dumps({"dependencies": packages})
    done = CompletedProcess([], 0, stdout=answer, stderr="Traceback\nno network")
    monkeypatch.setattr(audit, "run", lambda *words: done)
    assert [audit.main(lint=lint) for lint in (False, True)] == codes
    assert capsys.readouterr().out.count(said) == 2
