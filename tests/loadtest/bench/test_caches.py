"""`manage.py lab bench cache`."""

import io
import json

import pytest
from django.core.management import call_command

from loadtest.bench import caches


def test_round_on_real_servers():
    out = io.StringIO()
    call_command("lab", "bench", "cache", "--rounds", "1", "--json", stdout=out)
    report = json.loads(out.getvalue())
    builds = {row["line"]: row["builds"] for row in report["lines"]}
    readers = caches.PROCESSES * caches.THREADS
    assert builds == {
        **{"fresh": [0], "cold": [1], "expired": [1], "arriving": [1]},
        **{"killed": [caches.KILLED + 1], "control": [readers]},
    }
    alive = {row["line"]: row["rounds"][0]["readers"] for row in report["lines"]}
    # Each killed builder ends the readers of its process too.
    assert alive.pop("killed") == readers - caches.KILLED * caches.THREADS
    assert set(alive.values()) == {readers}
    headings, rows = caches.table(report)
    assert len(headings) == len(next(iter(rows)))
    assert "python" in caches.remarks(report)[0]


@pytest.mark.parametrize(("line", "is_sound"), [("cold", False), ("expired", False), (None, True)])
def test_second_build_is_unsound(line, is_sound):
    row = {"builds": 1, "p50_ms": 99.0, "shortest_gap_s": 9.0}
    measured = {name: [dict(row)] for name in caches.LINES}
    measured["killed"][0]["builds"] = caches.KILLED + 1
    measured["control"][0]["builds"] = 200
    if line:
        measured[line][0]["builds"] += 1
    targets = list(caches.targets(measured))
    assert caches.is_sound({"missing": {}, "targets": targets}) is is_sound
    assert any(" ms " in target["target"] and not target["met"] for target in targets)
