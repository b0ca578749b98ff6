"""Every scenario on real servers: its control breaks, its repair holds, its record adds up."""

from collections.abc import Callable
from typing import Any

import pytest

from devservers import ServerMissing
from loadtest.scenarios import SCENARIOS, run
from tests.fault_rows import SLACK, record_fault

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """The results by name."""
    return {result["name"]: result for result in run(SCENARIOS)["scenarios"]}


def ended(facts: Facts) -> bool:
    """Return True if the waiter got the lock about when the dead holder's lease ended."""
    return bool(facts["granted"]) and facts["waited"] < facts["ttl"] + SLACK


def never_ends(b: Facts, r: Facts) -> list[bool]:
    return [b["pttl"] == -1, not b["granted"], b["waited"] >= 2 * b["ttl"] - 0.1, ended(r)]


def serialized(b: Facts, r: Facts) -> list[bool]:
    return [b["overlaps"] >= 1, r["overlaps"] == 0, r["second_told"] == "sold_out"]


def fenced(b: Facts, r: Facts) -> list[bool]:
    """The repair prevents no second holder: the stock row refuses its write."""
    return [b["overlaps"] >= 1, r["overlaps"] >= 1, (b["refused"], r["refused"]) == (0, 1)]


def sold_right(what: str, wrong: int) -> Callable[[Facts, Facts], list[bool]]:
    """Expect so many units to be lost, oversold or unsold, and no such unit in the shop."""
    others = {"lost", "oversold", "unsold"} - {what}
    return lambda b, r: [
        (b[what], r[what]) == (wrong, 0),
        not any(facts[other] for facts in (b, r) for other in others),
        (r["sold"], r["left"]) == (r["stock"], 0),
    ]


def one_lease(told: str) -> Callable[[Facts, Facts], list[bool]]:
    """Expect two valid leases; in the repair, one, and this answer to the second buyer."""
    return lambda b, r: [
        (b["lease_overlaps"], r["lease_overlaps"]) == (1, 0),
        (r["overlaps"], r["second_told"]) == (0, told),
    ]


@pytest.mark.parametrize(
    ("name", "checks"),
    [
        ("no-lock", serialized),
        ("lock-of-one-process", serialized),
        ("setnx-without-expiry", never_ends),
        ("crash-between-setnx-and-expire", never_ends),
        pytest.param(
            "work-outlasts-lease",
            lambda b, r: [*serialized(b, r), r["second_waited"] >= 2 * r["ttl"] - 0.1],
            marks=pytest.mark.faults(row="F6", backend="redis"),
        ),
        (
            "delete-successors-lock",
            lambda b, r: [
                (b["third_granted"], r["third_granted"]) == (1, 0),
                (b["lease_overlaps"], r["lease_overlaps"]) == (1, 0),
                r["release_refused"] == 1,
            ],
        ),
        pytest.param(
            "holder-killed",
            lambda b, r: [b["waited"] > 3, ended(b), ended(r)],
            marks=pytest.mark.faults(row=3, backend="redis"),
        ),
        pytest.param(
            "holder-paused",
            # The lock did what it could: its leases did not overlap.
            lambda b, r: [*fenced(b, r), b["stalled"] >= 2 * b["ttl"], b["lease_overlaps"] == 0],
            marks=pytest.mark.faults(row=1, backend="redis", xf=True),
        ),
        pytest.param("gil-held", fenced, marks=pytest.mark.faults(row=2, backend="redis", xf=True)),
        pytest.param(
            "failover-before-replication",
            one_lease("sold_out"),
            marks=pytest.mark.faults(row=4, backend="redis, redlock", xf=True),
        ),
        pytest.param(
            "redlock-clock-jump",
            lambda b, r: [
                *fenced(b, r),
                b["jump"] > b["ttl"],
                # Nothing in Redis repairs it.
                b["lease_overlaps"] == r["lease_overlaps"] == 1,
            ],
            marks=pytest.mark.faults(row=7, backend="redlock", xf=True),
        ),
        pytest.param(
            "redlock-amnesia",
            one_lease("store_down"),
            marks=pytest.mark.faults(row=6, backend="redlock", xf=True),
        ),
        pytest.param(
            "herd-against-queue",
            # Counted by the server: 6 + 5 + 4 + 3 + 2 + 1 wake-ups, and six.
            lambda b, r: [
                (b["wakes"], r["wakes"]) == (21, 6),
                r["in_order"] == 1,
                r["requests"] < b["requests"],
            ],
            marks=pytest.mark.faults(row="F7", backend="zookeeper and a recipe"),
        ),
        (
            "polling-against-push",
            lambda b, r: [b["commands"] > 8 * b["waiters"], r["each"] <= 8],
        ),
        (
            "mysql-row-left-by-crash",
            # The recipe cannot wait, and its row stays.
            lambda b, r: [b["rows"] == 1, not b["granted"], b["waited"] < 2 + SLACK, ended(r)],
        ),
        pytest.param(
            "release-before-commit",
            # The lock itself was never held twice.
            lambda b, r: [b["overlaps"] == 0, r["second_told"] == "sold_out"],
            marks=pytest.mark.faults(row="F8", backend="redis"),
        ),
        ("retry-after-lost-reply", lambda b, r: [b["sold"] == 2, r["sold"] == 1]),
        pytest.param(
            "forced-switch",
            fenced,
            marks=pytest.mark.faults(row=25, backend="redis to database"),
        ),
        ("switch-under-load", lambda b, r: [b["sold"] == 2, r["second_told"] == "sold_out"]),
        ("unit-lost-to-a-check", sold_right("lost", 1)),
        # Each of the two crashes loses a unit or an order.
        ("crash-between-redis-and-queue", sold_right("lost", 2)),
        ("sold-out-for-ever", sold_right("unsold", 1)),
        (
            "payment-after-expiry",
            lambda b, r: [
                *sold_right("oversold", 1)(b, r),
                (b["paid"], r["paid"]) == (2, 1),
                r["refunded"] == 1,
            ],
        ),
        (
            "lock-while-paying",
            lambda b, r: [
                *sold_right("oversold", 1)(b, r),
                # The lock itself was granted to one at a time.
                (b["lease_overlaps"], b["overlaps"]) == (0, 1),
                # The payment of the first buyer was ended, so that nothing had to be refunded.
                (r["paid"], r["refunded"]) == (1, 0),
            ],
        ),
        ("restock-overwrites-sales", sold_right("oversold", 1)),
    ],
)
def test_control_breaks_and_repair_holds(
    results: dict[str, Any], name: str, checks: Callable[[Facts, Facts], list[bool]]
) -> None:
    result = results[name]
    if "is not installed" in result["why"]:
        raise ServerMissing(result["why"].split()[0])
    assert (result["verdict"], result["why"]) == ("ok", "")
    record_fault(f"{name}, broken and repaired")
    variants = result["halves"]
    assert [variant["is_repaired"] for variant in variants] == [False, True]
    broken, repaired = (variant["facts"] for variant in variants)
    if broken.get("oversold"):
        assert broken["sold"] > broken["stock"] == repaired["sold"]
    assert all(checks(broken, repaired)), (checks(broken, repaired), broken, repaired)
    sentences = SCENARIOS[name].describe(result)
    assert len(sentences) == 3
    assert not any("%" in sentence for sentence in sentences)
