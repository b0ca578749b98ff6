"""What counts as a surprise, and that the rows are believed rather than the answers."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.utils import translation

from loadtest.kernel.params import PlanError
from loadtest.load.buyers import Outcome
from loadtest.load.plan import Plan
from loadtest.load.report import headline, met, sentence, spreads, words, worst
from loadtest.load.verdict import expected, figures, percentile, with_controls
from shop.administration.audit import StockAudit

GUARD: dict[str, Any] = {"backends": ("none",), "disciplines": ("naive",)}
PLAN = Plan(**GUARD, buyers=3, stock=2)
RUN = {"backend": "none", "discipline": "naive", "stock": 5, "sold": 8, "verdict": "oversold"}


@pytest.mark.parametrize(
    ("named", "wrong"),
    [
        ("threads", {"processes": 32, "threads": 32}),
        ("fault", {"fault": "kill-database"}),
        ("backend", {"backends": ("mysql_session",)}),
        ("backend", {"backends": ("postgresql_session",), "store": "mariadb"}),
    ],
)
def test_combination_that_cannot_be_run_is_refused(named: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=named):
        Plan(**{**GUARD, **wrong})


@pytest.mark.parametrize(
    ("exclusion", "outlived", "shape", "requested", "promise"),
    [
        ("none", False, {}, (), "oversold"),
        ("process", False, {}, (), "oversold"),
        ("process", False, {"processes": 1}, (), "ok"),
        ("machines", False, {}, (), "ok"),
        ("none", False, {"processes": 1, "threads": 1}, (), "ok"),
        ("none", False, {"buyers": 50}, (), None),
        ("machines", True, {"fault": "pause-holder"}, (), "oversold"),
        ("machines", False, {"fault": "pause-holder"}, (), "ok"),
        ("machines", True, {"fault": "pause-holder", "processes": 1}, (), "ok"),
        ("machines", True, {"fault": "kill-holder"}, (), "ok"),
        ("machines", True, {"fault": "kill-redis"}, (), None),
        ("none", False, {"fault": "kill-redis"}, (), "oversold"),
        ("machines", True, {}, ("kill-holder",), "ok"),
        ("machines", True, {}, ("pause-holder",), None),
    ],
)
def test_promise_of_a_guard(
    exclusion: str,
    outlived: bool,
    shape: dict[str, Any],
    requested: tuple[str, ...],
    promise: str | None,
) -> None:
    """`outlived`: the lock expires while its holder is paused."""
    guard: Any = {"exclusion": exclusion, "outlived": outlived, "faults": requested}
    for strategy, kept in (("naive", promise), ("fenced", "ok"), ("conditional", "ok")):
        assert expected(Plan(**GUARD, **shape), discipline=strategy, **guard) == kept


def rows(held: int, available: int = 0, *breaches: str, oversold: int = 0, lost: int = 0) -> Any:
    units = {"initial": 2, "available": available, "held": held, "sold": 0}
    units |= {"oversold": oversold, "lost": lost, "stale_writes_refused": 0}
    return StockAudit(sale="s", breaches=breaches, **units)


def told(kinds: str) -> list[Outcome]:
    kind = {"o": b"order", "s": b"sold_out", "b": b"busy"}
    return [Outcome(kind[one], 1, 10.0, 10.0 + n) for n, one in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    ("audit", "answers", "verdict"),
    [
        (rows(2), "oos", "ok"),
        (rows(3, 0, "3 of 2", oversold=1), "ooo", "oversold"),
        (rows(1, 1), "obb", "undersold"),
        (rows(1, 0, "lost", lost=1), "os", "undersold"),
        (rows(2), "ooo", "undersold"),
        (rows(2), "oss", "oversold"),
        (rows(2), "obs", "ok"),  # the second one has an order, whose reply was lost
        (rows(2, 1, "3 != 2"), "ob", "oversold"),
        (rows(2, 1, "3 != 2"), "oo", "oversold"),
    ],
)
def test_verdict_comes_from_the_rows(audit: StockAudit, answers: str, verdict: str) -> None:
    run = figures(PLAN, audit, told(answers), 10.0)
    assert (run["verdict"], run["sold"]) == (verdict, audit.held)


def test_waits_and_rates_are_those_of_the_buyers() -> None:
    run = figures(PLAN, rows(2), told("oos"), 10.0)
    assert run["wait_ms"] == {"p50": 2000.0, "p95": 3000.0, "p99": 3000.0}
    assert run["orders_per_second"] == 1.0
    assert run["answers"] == {"order": 2, "sold_out": 1}
    assert [percentile(range(1, 101), share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert percentile([], 0.5) == 0


def test_where_the_control_holds_nothing_was_shown() -> None:
    runs: Sequence[dict[str, Any]] = [
        {**RUN, "backend": backend, "repeat": repeat, "verdict": verdict, "expected": promise}
        for backend, repeat, verdict, promise in (
            ("none", 1, "oversold", "oversold"),
            ("redis", 1, "ok", "ok"),
            ("none", 2, "ok", "oversold"),
            ("redis", 2, "ok", "ok"),
        )
    ]
    seen = [one["verdict"] for one in with_controls(runs)]
    assert seen == ["oversold", "ok", "not-run", "not-run"]


@pytest.mark.parametrize(
    ("verdict", "expected", "said"),
    [
        ("oversold", "oversold", "oversold"),
        ("oversold", None, "oversold"),
        ("ok", "ok", "exact"),
        ("ok", None, "exact"),
        ("oversold", "ok", "oversold: unexpected"),
        ("undersold", "ok", "undersold: unexpected"),
        ("ok", "oversold", "exact: unexpected"),
        ("not-run", None, "not run: unexpected"),
    ],
)
def test_verdict_in_words(verdict: str, expected: str | None, said: str) -> None:
    """An expected oversell is never "ok", and a broken promise in the history is a surprise."""
    run = {**RUN, "verdict": verdict, "expected": expected, "checked": {"breaches": []}}
    assert words(run) == said
    assert not met({**run, "checked": {"breaches": ["exclusion: two held it"]}})
    assert not met({**run, "checked": {"breaches": ["lost: customer 1 was told an order"]}})
    kept = met({**run, "checked": {"breaches": ["audit: oversold", "fence: it fell"]}})
    assert kept is (verdict == "oversold" and expected in (None, verdict))


def test_sentence_in_both_languages() -> None:
    """Guards that did not run for one reason share a sentence."""
    absent = {**RUN, "verdict": "not-run", "why": "no server."}
    runs = [{**absent, "backend": "redis"}, RUN, {**absent, "backend": "zookeeper"}]
    rest = "Redis, ZooKeeper did not run: no server."
    assert sentence(runs) == f"Without a lock: 8 sold of 5 in stock. {rest}"
    exact = {**RUN, "backend": "redis", "verdict": "ok", "sold": 5}
    assert sentence([RUN, exact]).endswith(" With Redis: exactly 5.")
    three = [*(RUN | {"backend": name} for name in ("process", "none")), exact]
    assert headline(three) == "3 guards: 2 oversold, 1 exact"
    twice = [RUN, {**RUN, "sold": 7}]
    assert sentence(twice) == "Without a lock: 7–8 sold of 5 in stock, over 2 runs."
    some = [RUN, {**absent, "sold": 0}]
    assert sentence(some) == "Without a lock: 8 sold of 5 in stock.", "an oversell is not hidden"
    with translation.override("zh-hans"):
        assert headline(three) == "3 种组合：2 种超卖，1 种数量正确"
        assert sentence([RUN, exact]) == "无锁：库存 5 件，卖出 8 件。Redis 锁：正好卖出 5 件。"


def test_worst_run_of_a_guard_is_the_one_that_lost_units() -> None:
    """Charts show it: an undersold run must not hide behind an exact one with longer waits."""
    exact = {"oversold": 0, "undersold": 0, "wait_ms": {"p99": 90.0}}
    undersold = {"oversold": 0, "undersold": 1, "wait_ms": {"p99": 9.0}}
    oversold = {"oversold": 1, "undersold": 0, "wait_ms": {"p99": 9.0}}
    assert worst([exact, undersold]) == undersold
    assert worst([exact, undersold, oversold]) == oversold


def test_spread_of_runs_has_the_same_decimals_in_a_column() -> None:
    measured = ((8, 85.0, 9.0), (8, 92.4, 12.6), (7, 80.0, 7.2))
    runs = [
        {
            **{**RUN, "sold": sold, "oversold": sold - 5},
            **{"orders_per_second": speed, "wait_ms": {"p99": p99}},
        }
        for sold, speed, p99 in measured
    ]
    (found,) = spreads(runs)
    assert found == {
        **{"guard": "no lock", "runs": 3, "sold": "8 (7–8)", "oversold": "3 (2–3)"},
        **{"orders_per_second": "85.0 (80.0–92.4)", "p99": "9 (7–13)"},
    }
