"""The linearizability checker: equal to brute force, fast on one lock, and honest when it stops."""

import json
import math
import os
import random
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from loadtest.kernel.history import Event, Recorder, history
from loadtest.load.buyers import buy as load_buy
from locking import locks
from tests.loadtest.lab import verify
from tests.shop.making import a_customer, a_sale, fresh, put_in_force
from tests.verification.histories.brute_force import NEVER, Op, events_of, histories, is_legal
from verification.histories.linearizability import Model, check
from verification.histories.lock_models import Lock, Stock

HISTORIES = int(os.environ.get("HISTORIES", "350"))
"""`make verify WHAT=histories` sets 10,000."""
MODELS: dict[str, Model] = {
    "mutex": Lock(),
    "reentrant": Lock(reentrant=True),
    "fenced": Lock(fenced=True),
    "reentrant-fenced": Lock(reentrant=True, fenced=True),
    "semaphore": Lock(size=2),
    "read-write": Lock(size=math.inf),
    "stock": Stock(units=3),
}


def verdict(model: Model, events: list[Event], **options: Any) -> str:
    found = {one.verdict for one in check(events, model, **options)}
    return next((word for word in ("illegal", "undecided") if word in found), "legal")


@pytest.mark.parametrize("name", MODELS)
def test_verdicts_equal_those_of_brute_force(name: str) -> None:
    """Half of the histories are illegal; tokens, owners, outcomes and times vary."""
    for number, (ops, legal) in enumerate(histories(name, math.ceil(HISTORIES / 7), seed=1)):
        found = verdict(MODELS[name], events_of(ops))
        assert found == ("legal" if legal else "illegal"), (number, ops)


def grant(owner: str, called: int, returned: int, **fields: Any) -> Op:
    outcome = "unknown" if returned == NEVER else "ok"
    return Op(
        owner, "acquire", {**named(owner), "backend": "redis", **fields}, outcome, called, returned
    )


def release(owner: str, called: int, returned: int, outcome: str = "ok") -> Op:
    return Op(owner, "release", named(owner), outcome, called, returned)


def buy(key: str, called: int, returned: int) -> Op:
    """Return a purchase of all units."""
    fields = {"user": 1, "key": key, "quantity": 3, "order": f"order {key}"}
    return Op(f"buyer {key}", "buy", fields, "ok", called, returned)


def named(owner: str) -> dict[str, Any]:
    return {"name": "sale:1", "owner": owner}


EXPIRED = [grant("a", 0, 1, token=1), grant("b", 2, 3, token=2), release("a", 4, 5, "fail")]
"""The lease of a ends, b gets the lock, and a's release reports that the lock was lost."""
FIXED = {
    "the owner after a stale release": ("fenced", [*EXPIRED, release("b", 6, 7)], "legal"),
    "a token came back": ("fenced", [*EXPIRED, grant("c", 6, 7, token=2)], "illegal"),
    "an unknown grant that happened late": (
        "mutex",
        [grant("a", 0, NEVER), grant("b", 1, 2), release("b", 3, 4), release("a", 5, 6)],
        "legal",
    ),
    "an unknown grant given up while another waits": (
        "mutex",
        [grant("a", 0, NEVER), release("b", 1, 9, "fail"), release("a", 2, 7), grant("b", 3, 6)],
        "legal",
    ),
    "an unknown grant after a later one": (
        "fenced",
        [grant("a", 0, NEVER), grant("b", 1, 2, token=1), release("a", 3, 4)],
        "legal",
    ),
    "an unknown grant after one that has not returned": (
        "fenced",
        [grant("a", 0, NEVER), grant("b", 1, 9, token=0), release("a", 2, 5)],
        "legal",
    ),
    "an order is cancelled before its purchase returned": (
        "stock",
        [buy("a", 0, 5), buy("b", 0, 9), Op("x", "cancel", {"order": "order b"}, "ok", 1, 4)],
        "legal",
    ),
    "an unknown grant takes a token": (
        "fenced",
        [grant("a", 0, NEVER), release("a", 1, 2), grant("b", 3, 4, token=1)],
        "legal",
    ),
}


@pytest.mark.parametrize("case", FIXED)
def test_fixed_history(case: str) -> None:
    name, ops, expected = FIXED[case]
    assert verdict(MODELS[name], events_of(ops)) == expected
    assert is_legal(name, ops) == (expected == "legal")


def contended(operations: int, clients: int) -> list[Event]:
    """Return a legal history of one lock: every client waits, holds it and releases it."""
    rng, now, ops = random.Random(1), 0, list[Op]()
    last = dict.fromkeys(range(clients), 0)
    for number in range(operations // 2):
        client = min(last, key=lambda one: last[one])
        owner, asked, now = f"{client}.{number}", last[client] + 1, now + rng.randint(10, 1000)
        ops.append(grant(owner, asked, now + rng.randint(5, 500), token=number))
        now += 600 + rng.randint(10, 1000)
        last[client] = now + rng.randint(0, 2000)
        ops.append(release(owner, now - 5, last[client]))
    return events_of(ops)


@pytest.mark.parametrize("name", ["mutex", "reentrant-fenced"])
def test_steps_grow_linearly_with_a_contended_lock(name: str) -> None:
    """100,000 operations take fifty times as many as these: less than the budget of a check."""
    (found,) = check(contended(2_000, 32), MODELS[name])
    assert (found.verdict, found.operations) == ("legal", 2_000)
    assert found.steps < 150 * found.operations, found


def test_exhausted_budget_is_undecided() -> None:
    events = contended(100, 8)
    (enough,) = check(events, MODELS["mutex"])
    assert enough.verdict == "legal"
    assert verdict(MODELS["mutex"], events, budget=enough.steps - 1) == "undecided"
    assert verdict(MODELS["mutex"], events, budget=0) == "undecided"


def test_first_illegal_operation_and_its_neighbours_are_named() -> None:
    ops = [grant("b", 212, 214)]
    for start in range(0, 500, 100):
        ops += [grant("a", start, start + 10), release("a", start + 20, start + 30)]
    (found,) = check(events_of(ops), MODELS["mutex"])
    assert found.wrong is not None
    assert (found.wrong.actor, found.wrong.called) == ("b", 212)
    assert [one.called for one in found.near] == [100, 120, 200, 212, 220, 300, 320]


@pytest.mark.django_db(transaction=True)
def test_recorded_purchases_explain_the_units(tmp_path: Path) -> None:
    """Control: with another unit at the start, the refusal has no explanation."""
    put_in_force("redis", "naive")
    recorder, sale = Recorder(tmp_path, "shop"), a_sale(stock=1)
    recorder.watch(locks["redis"])
    recorder.watch_purchases()
    once: dict[str, Any] = {"key": "k", "patience": 0.0, "pauses": random.Random()}
    kinds = [load_buy(recorder, lambda: fresh(sale), a_customer().pk, **once).kind for _ in "ab"]
    recorder.close()
    locks.close()
    assert kinds == ["order", "sold_out"]
    events = history(tmp_path)
    assert verdict(Stock(units=1), events) == "legal"
    assert verdict(Stock(units=2), events) == "illegal"
    assert verdict(Stock(units=0), events) == "illegal"
    assert verdict(Lock(fenced=True), events) == "legal"


def test_command_prints_the_verdict_and_exits_with_its_code(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "run.jsonl"
    events = events_of(EXPIRED)
    file.write_text("".join(json.dumps(event) + "\n" for event in events) + '{"t": 12, "act')
    found, code = verify("check", "--model=fenced", str(file))
    assert (found["verdict"], code) == ("legal", 0)
    found, code = verify("check", "--model=mutex", str(file))
    assert (found["verdict"], code) == ("illegal", 1)
    assert found["objects"][0]["wrong"] == found["objects"][0]["near"][1]
    found, code = verify("check", "--model=mutex", "--budget=0", str(file))
    assert (found["verdict"], code) == ("undecided", 2)
    with pytest.raises(SystemExit):
        call_command("verify", "check", "--model=mutex", str(file))
    said = capsys.readouterr().out
    assert "sale:1: illegal, 3 operations." in said
    assert "  > 0.000000 s to 0.000000 s  b: acquire, ok, token 2\n" in said


CALL = {"t": 1, "actor": "a", "type": "invoke", "id": 1}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[]", "line 1 is no event"),
        ('{"t": Infinity}', "line 1 is no event"),
        ("", "has no operations of the model"),
        (json.dumps(CALL | {"do": "acquire", "type": "ok"}), "operation 1 of a has no call"),
        (json.dumps(CALL | {"do": "release", "name": "n"}), "lacks a field .*: 'owner'"),
        (json.dumps(CALL | {"do": "release", "type": None}), "has a wrong one: None"),
        (json.dumps(CALL | {"do": "pay", "order": "A"}), "no purchase returned order A"),
    ],
)
def test_command_refuses_a_file_that_is_no_history(line: str, why: str, tmp_path: Path) -> None:
    file, model = tmp_path / "run.jsonl", "stock" if "order" in line else "mutex"
    file.write_text(f"{line}\n" if line else "")
    with pytest.raises(CommandError, match=why) as refused:
        call_command("verify", "check", f"--model={model}", str(file))
    assert refused.value.returncode == 2
    with pytest.raises(CommandError, match="No such file"):
        call_command("verify", "check", "--model=mutex", str(tmp_path / "none"))
