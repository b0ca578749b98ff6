"""`manage.py lab bench cache`."""

import io
import json

import pytest
from django.core.management import call_command

from loadtest.bench import caches as rebuilds


def test_one_round_on_real_servers():
    out = io.StringIO()
    call_command("lab", "bench", "cache", "--rounds", "1", "--json", stdout=out)
    report = json.loads(out.getvalue())
    builds = {row["line"]: row["builds"] for row in report["lines"]}
    readers = rebuilds.PROCESSES * rebuilds.THREADS
    assert builds == {
        **{"fresh": [0], "cold": [1], "expired": [1], "arriving": [1]},
        **{"killed": [rebuilds.KILLED + 1], "control": [readers]},
    }
    alive = {row["line"]: row["rounds"][0]["readers"] for row in report["lines"]}
    # Each killed builder takes the readers of its process along.
    assert alive.pop("killed") == readers - rebuilds.KILLED * rebuilds.THREADS
    assert set(alive.values()) == {readers}
    assert len(list(rebuilds.tables(report))) == 1
    assert "python" in rebuilds.remarks(report)[0]


@pytest.mark.parametrize(("line", "is_sound"), [("cold", False), ("expired", False), (None, True)])
def test_a_second_build_is_an_unsound_report(line, is_sound):
    row = {"builds": 1, "p50_ms": 99.0, "shortest_gap_s": 9.0}
    measured = {name: [dict(row)] for name in rebuilds.LINES}
    measured["killed"][0]["builds"] = rebuilds.KILLED + 1
    measured["control"][0]["builds"] = 200
    if line:
        measured[line][0]["builds"] += 1
    targets = [{"target": name, "met": met} for name, met in rebuilds._targets(measured)]
    assert rebuilds.is_sound({"missing": {}, "targets": targets}) is is_sound
    assert any(" ms " in target["target"] and not target["met"] for target in targets)
