"""`lab run --fault`: the fault hits the holder; a run that it missed does not count."""

from tests.loadtest.lab import check_sum, guards, lab


def by_guard(report):
    return {(run["backend"], run["discipline"]): run for run in report["runs"]}


def verdicts(report):
    """Return one text, which pytest does not shorten in the middle."""
    runs = by_guard(report).items()
    return "\n".join(f"{guard}: {run['verdict']}, {run['why']}" for guard, run in runs)


def test_paused_holder_oversells_unless_the_row_refuses_its_write():
    report, code = lab(
        "run",
        *guards("none", "redis"),
        "--discipline=naive",
        "--discipline=conditional",
        "--fault=pause-holder",
        "--threads=2",
    )
    runs = by_guard(report)
    assert code == 0, verdicts(report)
    assert runs["redis", "naive"]["verdict"] == "oversold"
    check_sum(runs["redis", "naive"])
    assert runs["redis", "naive"]["checked"]["facts"]["faults"] == 1
    assert runs["redis", "conditional"]["sold"] == 50
    (at, word), (back, resumed) = runs["redis", "naive"]["marks"]
    assert (word, resumed) == ("pause-holder", "resumed")
    assert back - at > 2.9
    # The fault was injected when half of the stock was sold.
    before = [sold for when, sold in runs["redis", "naive"]["sold_at"] if when <= at]
    assert 20 <= max(before) <= 33


def test_killed_holder_is_replaced_and_its_buyers_are_served():
    report, code = lab("run", *guards("none", "redis"), "--fault=kill-holder", "--processes=2")
    runs = by_guard(report)
    assert code == 0, verdicts(report)
    killed = runs["redis", "naive"]
    assert (killed["sold"], killed["checked"]["facts"]["faults"]) == (50, 1)
    assert sum(killed["answers"].values()) == 200
    assert killed["wait_ms"]["p99"] > 1000  # the others waited for the dead holder's lease


def test_killed_server_comes_back_and_nothing_is_oversold():
    report, code = lab(
        "run",
        *guards("none", "redis"),
        "--discipline=conditional",
        "--fault=kill-redis",
        "--repeats=2",
    )
    assert code == 0, verdicts(report)
    assert [run["sold"] for run in report["runs"]] == [50] * 4
    redis = by_guard(report)["redis", "conditional"]
    assert redis["attempts"] > 200  # some attempts met an unavailable store


def test_fault_that_did_not_fire_is_not_run():
    report, code = lab("run", "--backend=redis", "--fault=kill-holder", "--buyers=5", "--at=0.5")
    (run,) = report["runs"]
    assert (run["verdict"], run["why"]) == ("not-run", "kill-holder did not fire")
    assert code == 1


def test_report_is_exported_as_files(tmp_path):
    files = {suffix: tmp_path / f"run.{suffix}" for suffix in ("html", "csv", "png", "svg")}
    options = [f"--{suffix}={file}" for suffix, file in files.items()]
    lab("run", "--backend=none", "--backend=redis", "--buyers=60", "--stock=5", *options)
    page = files["html"].read_text()
    assert "With Redis: exactly 5." in page
    assert page.count("<svg") == 4
    assert len(page) < 300_000
    # The page works offline: its script is in it.
    assert [one for one in ("src=", "<link", "url(http") if one in page] == []
    assert page.count("<script>") == 1
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    assert len(files["csv"].read_text().splitlines()) == 3
    assert files["svg"].read_text().startswith("<svg")
