"""`manage.py lab bench commit`: a short run, its verdict, its page and its chart."""

import io
from xml.etree import ElementTree

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from loadtest.bench import commit
from loadtest.charts.rates import by_category

ALONE = "one row, a transaction each"
SVG = "{http://www.w3.org/2000/svg}"


def test_short_run_on_real_servers():
    seconds, pause = 0.5, 50
    asked = {"rounds": 1, "seconds": seconds, "pauses": [0, pause]}
    report = commit.bench(asked, lambda _: None)
    rates = {(row["line"], row["pause_ms"]): row["per_second"] for row in report["lines"]}
    assert commit.is_sound(report), report
    assert rates.keys() == {(line.name, ms) for line in commit.LINES for ms in (0, pause)}
    assert all(row["rounds"][0]["answers"]["ok"] for row in report["lines"])
    # Proves the pause: transactions that wait for one row end one after the other.
    assert rates[ALONE, pause] <= 1000 / pause + 1 / seconds
    headings, rows = commit.table(report)
    assert list(headings[1:]) == ["0 ms", "50 ms"]
    assert [row[0] for row in rows][1:3] == [commit.QUEUED.name, commit.ACCEPTED]
    assert commit.markdown(report).count("\n| ") == 1 + len(rows)
    assert ElementTree.fromstring(commit.chart(report)).tag == f"{SVG}svg"  # noqa: S314


def test_breach_makes_the_report_unsound():
    exact = {"breaches": []}
    report = {"missing": {}, "lines": [{"rounds": [exact, exact]}]}
    assert commit.is_sound(report)
    report["lines"][0]["rounds"].append({"breaches": ["11 of 10 units taken"]})
    assert not commit.is_sound(report)


def test_chart_draws_each_rate_on_a_logarithmic_axis():
    series = [("one row", [1000.0, 100.0, 10.0]), ("one <row> per unit", [1000.0, 500.0, 200.0])]
    text = by_category("Purchases", ["0 ms", "5 ms", "50 ms"], series)
    drawn = ElementTree.fromstring(text)  # noqa: S314
    places = [float(one.get("cy")) for one in drawn.iter(f"{SVG}circle")]
    first, second = places[:3], places[3:]
    assert first[1] - first[0] == pytest.approx(first[2] - first[1], abs=0.2)
    assert second[0] == first[0]
    assert second[2] < first[2]
    titles = [one.text for one in drawn.iter(f"{SVG}title")]
    assert titles[-1] == "one <row> per unit: 200"


def test_options_of_other_subjects_are_refused():
    out = io.StringIO()
    with pytest.raises(CommandError, match="--buyers belongs to `lab bench purchase`"):
        call_command("lab", "bench", "commit", "--buyers=5", stdout=out)
    with pytest.raises(CommandError, match="--seconds belongs to `lab bench purchase`"):
        call_command("lab", "bench", "keys", "--seconds=1", stdout=out)
