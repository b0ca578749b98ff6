"""The judges reject what the locks must not do, and accept what leases may do."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from shop.models import digest
from verification.torture.judge import judge, judge_ends, judge_sales
from verification.torture.plan import Plan, Terms

MS = 1_000_000
Row = dict[str, Any]


def operation(
    do: str, owner: str, begin: int, end: int | None, kind: str = "ok", **fields: Any
) -> list[Row]:
    """Return the events of an operation, in milliseconds; without an end its outcome is unknown."""
    if "deadline" in fields:
        fields["deadline"] *= MS
    named = {"actor": owner[0], "do": do, "id": begin, "owner": owner, "name": "n", "backend": "b"}
    call = {**named, "t": begin * MS, "type": "invoke"}
    return [call] if end is None else [call, {**named, "t": end * MS, "type": kind, **fields}]


PLAN = Plan(seed=1, backend="redis", workload="mutex", names=1, faults=())


def violations(folder: Path, rows: list[Row], backend: str = "redis") -> list[str]:
    (folder / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = replace(PLAN, backend=backend)
    return [one.partition(":")[0] for one in judge(plan, folder).violations]


A = operation("acquire", "a1", 0, 1, token=1, deadline=100)
B_EARLY = operation("acquire", "b1", 50, 60, token=2, deadline=160)
B_LATE = operation("acquire", "b1", 50, 101, token=2, deadline=160)


LEASES = {
    "released": ([*A, *operation("release", "a1", 2, 3), *B_EARLY], []),
    "two holders": ([*A, *B_EARLY], ["exclusion"]),
    "expired": ([*A, *B_LATE], []),
    "told so": ([*A, *B_LATE, *operation("release", "a1", 120, 121, "fail", error="LockLost")], []),
    "released by a stale holder": (
        [*A, *B_LATE, *operation("release", "a1", 120, 121)],
        ["exclusion", "fencing"],
    ),
    "learned too late, in a stopped process": (
        [*operation("acquire", "a1", 0, 170, token=1, deadline=40), *B_EARLY],
        [],
    ),
    "learned in time, with another holder": (
        [*operation("acquire", "a1", 0, 70, token=1, deadline=90), *B_EARLY],
        ["exclusion"],
    ),
    "released without a reply": ([*A, *operation("release", "a1", 2, None), *B_EARLY], []),
    "lost before its deadline": (
        [*A, *operation("release", "a1", 2, 3, "fail", error="LockLost")],
        ["exclusion"],
    ),
}


@pytest.mark.parametrize(("rows", "expected"), LEASES.values(), ids=LEASES)
def test_a_lease_ends_by_itself_but_not_before_its_deadline(
    tmp_path: Path, rows: list[Row], expected: list[str]
) -> None:
    found = violations(tmp_path, rows)
    assert found[: len(expected)] == expected
    assert bool(found) is bool(expected)


def test_masters_may_execute_a_release_that_a_late_reply_reports_as_lost(tmp_path: Path) -> None:
    """One master freed it, one had never granted it, and the third replied after the lease."""
    rows = [*A, *operation("release", "a1", 2, 130, "fail", error="LockLost"), *B_EARLY]
    assert violations(tmp_path, rows) == ["exclusion"]
    assert violations(tmp_path, rows, "redlock") == []
    early = operation("acquire", "b1", 0, 1, token=2, deadline=160)
    assert violations(tmp_path, [*rows[:4], *early], "redlock") == ["exclusion"]


def test_session_ends_with_a_process_that_got_the_lock_as_it_was_killed(tmp_path: Path) -> None:
    """Its death is recorded just before; control: without it, there are two holders."""
    both = [
        *operation("acquire", "a1", 0, 11, token=1),
        *operation("acquire", "b1", 5, 20, token=2),
    ]
    rows = [row | {"deadline": None} for row in both]
    kill = {"do": "fault", "type": "start", "lane": "a", "target": "a"}
    assert violations(tmp_path, rows, "mysql_session") == ["exclusion"]
    killed = [*rows, {"t": 10 * MS, "actor": "lab", **kill}]
    assert violations(tmp_path, killed, "mysql_session") == []


def test_tokens_that_do_not_grow_are_found(tmp_path: Path) -> None:
    again = operation("acquire", "b1", 4, 5, token=1, deadline=160)
    assert "fencing" in violations(tmp_path, [*A, *operation("release", "a1", 2, 3), *again])


def test_what_is_left_over_is_found() -> None:
    before = {"descriptors": 10, "threads": 2}
    clean = {"actor": "a", "held": [], "listed": [], "threads": ["main"]}
    clean |= {"before": before, "resources": before}
    assert judge_ends(PLAN, {"missing": []}, [clean]) == []
    grown = {"descriptors": 50, "threads": 9}
    dirty = {**clean, "held": ["n"], "listed": ["m"], "resources": grown}
    found = judge_ends(PLAN, {"missing": ["n"]}, [dirty])
    assert [one.partition(":")[0] for one in found] == ["liveness", *["leaks"] * 4]


def buy(key: str, begin: int, kind: str, user: int = 1, **fields: Any) -> list[Row]:
    """Return the events of a form for one unit, in milliseconds."""
    form = {"actor": "a", "do": "buy", "id": begin, "sale": "s", "user": user, "key": key}
    form |= {"quantity": 1, "is_cut": False}
    call = {**form, "t": begin * MS, "type": "invoke"}
    return [call, {**form, "t": (begin + 1) * MS, "type": kind, **fields}]


def order(
    number: str, key: str, user: int = 1, *, units: int = 1, status: str = "pending"
) -> list[Any]:
    return [number, user, digest(key), units, status]


def sold(key: str, number: str, begin: int = 0) -> list[Row]:
    return buy(key, begin, "ok", order=f"/orders/{number}/")


def changed(do: str, key: str, begin: int) -> list[Row]:
    """Return the events of an order that is paid or cancelled."""
    return [event | {"do": do} for event in buy(key, begin, "ok")]


SOLD_OUT = {"error": "SoldOut"}
K, X = sold("k", "X"), order("X", "k")


FORMS = {
    "one order": (sold("k", "X"), [order("X", "k")], []),
    "lost": (sold("k", "X"), [], ["promises"]),
    "another order": (sold("k", "X"), [order("Y", "k")], ["promises"]),
    "two answers": (
        [*sold("k", "X"), *sold("k", "Y", 5)],
        [order("X", "k")],
        ["promises", "promises"],
    ),
    "two orders": (sold("k", "X"), [order("X", "k"), order("Y", "k")], ["promises", "promises"]),
    "after a refusal": (buy("k", 0, "fail", **SOLD_OUT), [order("X", "k")], ["promises", "units"]),
    "refused although units are left": (buy("k", 2000, "fail", **SOLD_OUT), [], ["units"]),
    "sold out": (
        [*sold("k", "X"), *sold("l", "Y", 5), *buy("m", 9000, "fail", **SOLD_OUT)],
        [order("X", "k"), order("Y", "l")],
        [],
    ),
    "refused after its order": (
        [*sold("k", "X"), *sold("l", "Y", 5), *buy("k", 9000, "fail", **SOLD_OUT)],
        [order("X", "k"), order("Y", "l")],
        ["promises"],
    ),
    "refused, and ordered": (buy("k", 0, "fail", error="limit"), [X], ["promises"]),
    "ordered by no one": (K, [X, order("Y", "other", 9)], ["promises"]),
    "ordered at the end of the run": (K, [X, order("Y", "last of s", 9)], []),
    "another quantity": (K, [order("X", "k", units=2)], ["promises"]),
    "cancelled": ([*K, *changed("cancel", "k", 5)], [order("X", "k", status="cancelled")], []),
    "not cancelled": ([*K, *changed("cancel", "k", 5)], [X], ["promises"]),
    "paid": ([*K, *changed("pay", "k", 5)], [order("X", "k", status="paid")], []),
    "not paid": ([*K, *changed("pay", "k", 5)], [X], ["promises"]),
}


@pytest.mark.parametrize(("rows", "orders", "expected"), FORMS.values(), ids=FORMS)
def test_customers_get_what_they_were_told(
    tmp_path: Path, rows: list[Row], orders: list[Any], expected: list[str]
) -> None:
    terms = Terms("torture", "conditional", False, 2, 2, False, 4.0)
    plan = Plan(seed=1, backend="shop-sqlite", workload="stock", names=1, faults=(), terms=terms)
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sale = {"id": 1, "breaches": [], "stocked": 2, "limit": 2, "orders": orders, "rejected": {}}
    found = judge_sales(plan, tmp_path, {"s": sale}).violations
    assert [one.partition(":")[0] for one in found] == [*expected, *(["terms"] if expected else [])]


@pytest.mark.parametrize(("lock", "found"), [("torture", ["units", "terms"]), ("process", [])])
def test_reservation_without_a_unit_needs_a_lock_that_processes_share(
    tmp_path: Path, lock: str, found: list[str]
) -> None:
    """Model `unlocked-reconciler`: the second one then waits for the unit of the first."""
    terms = Terms(lock, "fenced", True, 1, 2, False, 4.0)
    plan = Plan(seed=1, backend="shop-sqlite", workload="stock", names=1, faults=(), terms=terms)
    rows = [*K, *sold("l", "Y", 5), *changed("cancel", "k", 10)]
    (tmp_path / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    orders = [order("X", "k", status="cancelled"), order("Y", "l")]
    sale = {"id": 1, "breaches": [], "stocked": 1, "limit": 2, "orders": orders, "rejected": {}}
    told = judge_sales(plan, tmp_path, {"s": sale}).violations
    assert [one.partition(":")[0] for one in told] == found
