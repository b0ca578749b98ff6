"""What counts as a surprise, and that the rows are believed rather than the answers."""

import pytest
from django.utils import translation

from loadtest.history.lost_updates import lost_updates
from loadtest.load.buyers import Outcome
from loadtest.load.plan import Plan, PlanError
from loadtest.load.report import met, sentence, words
from loadtest.load.verdict import expected, judge, percentile, with_controls
from shop.administration.audit import StockAudit
from tests.loadtest.lab import check_sum

GUARD = {"backends": ("none",), "disciplines": ("naive",)}
PLAN = Plan(**GUARD, buyers=3, stock=2)


def books(*, held=0, available=0, oversold=0, lost=0, breaches=()):
    return StockAudit(
        sale="s",
        initial=2,
        available=available,
        held=held,
        sold=0,
        oversold=oversold,
        lost=lost,
        stale_writes_refused=0,
        breaches=tuple(breaches),
    )


def told(*kinds):
    return [Outcome(kind.encode(), 1, 10.0, 10.0 + n) for n, kind in enumerate(kinds, 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"buyers": 0},
        {"buyers": 10**9},
        {"stock": 0},
        {"stock": 10**9},
        {"processes": 0},
        {"threads": 0},
        {"processes": 32, "threads": 32},
        {"think_ms": -1},
        {"think_ms": float("nan")},
        {"repeats": 0},
        {"patience": float("inf")},
        {"seed": -1},
        {"store": "oracle"},
        {"fault": "earthquake"},
        {"fault": "kill-database"},
        {"at": 1.5},
        {"at": float("nan")},
        {"backends": ()},
        {"backends": ("rediss",)},
        {"backends": ("redis", "redis")},
        {"backends": ("mysql_session",)},
        {"backends": ("postgresql_session",), "store": "mariadb"},
        {"disciplines": ("careful",)},
    ],
)
def test_a_plan_that_cannot_be_run_is_refused(wrong):
    field = next(iter(wrong))
    named = {"think_ms": "think-ms", "backends": "backend", "disciplines": "strategy"}
    with pytest.raises(PlanError, match=named.get(field, field)):
        Plan(**{**GUARD, **wrong})


@pytest.mark.parametrize(
    ("exclusion", "discipline", "shape", "promise"),
    [
        ("none", "naive", {}, "oversold"),
        ("process", "naive", {}, "oversold"),
        ("process", "naive", {"processes": 1}, "ok"),
        ("machines", "naive", {}, "ok"),
        ("none", "conditional", {}, "ok"),
        ("none", "fenced", {}, "ok"),
        ("none", "naive", {"processes": 1, "threads": 1}, "ok"),
        ("none", "naive", {"buyers": 50}, None),
    ],
)
def test_what_a_guard_promises(exclusion, discipline, shape, promise):
    plan = Plan(**GUARD, **shape)
    assert expected(plan, exclusion=exclusion, discipline=discipline) == promise


@pytest.mark.parametrize(
    ("audit", "answers", "verdict"),
    [
        (books(held=2), told("order", "order", "sold_out"), "ok"),
        (books(held=3, oversold=1, breaches=["3 of 2"]), told(*["order"] * 3), "oversold"),
        (books(held=1, available=1), told("order", "busy", "busy"), "undersold"),
        (books(held=1, lost=1, breaches=["lost"]), told("order", "sold_out"), "undersold"),
        (books(held=2), told("order", "order", "order"), "undersold"),
        (books(held=2, available=1, breaches=["3 != 2"]), told("order", "order"), "oversold"),
    ],
)
def test_the_verdict_comes_from_counting_rows(audit, answers, verdict):
    run = judge(PLAN, audit, answers, 10.0, "ok")
    assert run["verdict"] == verdict
    assert run["sold"] == audit.held


def test_waits_and_rates_are_those_of_the_buyers():
    run = judge(PLAN, books(held=2), told("order", "order", "sold_out"), 10.0, "ok")
    assert run["wait_ms"] == {"p50": 2000.0, "p95": 3000.0, "p99": 3000.0}
    assert run["orders_per_second"] == 1.0
    assert run["answers"] == {"order": 2, "sold_out": 1}


@pytest.mark.parametrize(
    ("exclusion", "outlived", "shape", "promise"),
    [
        ("machines", True, {"fault": "pause-holder"}, "oversold"),
        ("machines", False, {"fault": "pause-holder"}, "ok"),
        ("machines", True, {"fault": "pause-holder", "processes": 1}, "ok"),
        ("machines", True, {"fault": "kill-holder"}, "ok"),
        ("machines", True, {"fault": "kill-redis"}, None),
        ("none", False, {"fault": "kill-redis"}, "oversold"),
    ],
)
def test_what_a_guard_promises_under_a_fault(exclusion, outlived, shape, promise):
    plan = Plan(**GUARD, **shape)
    asked = {"exclusion": exclusion, "outlived": outlived}
    assert expected(plan, discipline="naive", **asked) == promise
    assert expected(plan, discipline="fenced", **asked) == "ok"


def test_where_the_control_holds_nothing_was_shown():
    def run(backend, repeat, verdict, promise):
        named = {"backend": backend, "discipline": "naive", "repeat": repeat, "why": ""}
        return {**named, "verdict": verdict, "expected": promise}

    runs = [
        run("none", 1, "oversold", "oversold"),
        run("redis", 1, "ok", "ok"),
        run("none", 2, "ok", "oversold"),
        run("redis", 2, "ok", "ok"),
    ]
    seen = [one["verdict"] for one in with_controls(runs)]
    assert seen == ["oversold", "ok", "not-run", "not-run"]


def test_a_history_that_breaks_a_promise_is_a_surprise():
    run = {"verdict": "ok", "expected": "ok", "checked": {"breaches": []}}
    assert met(run)
    assert not met({**run, "checked": {"breaches": ["exclusion: two held it"]}})


def test_percentiles():
    assert [percentile(range(1, 101), share) for share in (0.5, 0.95, 0.99)] == [50, 95, 99]
    assert percentile([], 0.5) == 0


@pytest.mark.parametrize(("first", "second"), [(36, 36), (36, 34), (30, 36)])
def test_sum_of_an_oversold_run_adds_up(first, second):
    """Also if a buyer wrote for several, as the leader of a group does."""
    steps = [("a", "read", 37), ("b", "read", 37), ("a", "write", first), ("b", "write", second)]
    events = [
        {"t": at, "actor": actor, "thread": 1, "do": do, "type": "ok", "quantity": quantity}
        for at, (actor, do, quantity) in enumerate(steps)
    ]
    sold = 74 - first - second
    found = lost_updates(events, units=sold, counted=37 - second)
    assert "In all" in check_sum({"sold": sold, "lost_updates": found})


def test_what_did_not_run_for_one_reason_is_told_in_one_sentence():
    run = {"backend": "none", "discipline": "naive", "stock": 5, "sold": 8, "verdict": "oversold"}
    absent = {**run, "verdict": "not-run", "why": "no server."}
    runs = [{**absent, "backend": "redis"}, run, {**absent, "backend": "zookeeper"}]
    assert (
        sentence(runs)
        == "Without a lock: 8 sold of 5 in stock. redis, zookeeper did not run: no server."
    )


@pytest.mark.parametrize(
    ("verdict", "expected", "said"),
    [
        ("oversold", "oversold", "oversold, as expected"),
        ("ok", "ok", "exact, as expected"),
        ("ok", None, "exact"),
        ("oversold", "ok", "oversold: unexpected"),
        ("undersold", "ok", "undersold: unexpected"),
        ("ok", "oversold", "exact: unexpected"),
        ("not-run", None, "not run: unexpected"),
    ],
)
def test_verdict_in_words(verdict, expected, said):
    """An expected oversell is never "ok"."""
    run = {"backend": "none", "verdict": verdict, "expected": expected}
    assert words(run) == said


def test_sentence_in_both_languages():
    runs = [
        {"backend": backend, "discipline": "naive", "verdict": "ok", "stock": 50, "sold": sold}
        for backend, sold in (("none", 200), ("redis", 50))
    ]
    assert sentence(runs) == "Without a lock: 200 sold of 50 in stock. With Redis: exactly 50."
    twice = [{**run, "sold": sold} for run in runs[:1] for sold in (180, 200)]
    assert sentence(twice) == "Without a lock: 180-200 sold of 50 in stock in each of 2 runs."
    with translation.override("zh-hans"):
        assert sentence(runs) == "不加锁：库存 50 件，卖出 200 件。使用 Redis：正好卖出 50 件。"
