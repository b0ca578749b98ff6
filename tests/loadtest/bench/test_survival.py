"""`manage.py lab survival`: a lock of this library survives faults that a naive one does not."""

import re
from functools import partial

import pytest

from loadtest.bench.survival.judge import Verdict, agreed
from loadtest.bench.survival.libraries import CONTROL, LIBRARIES
from loadtest.bench.survival.runner import CASES
from tests.loadtest.lab import lab

OURS = "locking-redis"
S = 1_000_000_000


long = partial(pytest.param, marks=pytest.mark.long)


@pytest.mark.parametrize(
    ("fault", "ours", "control"),
    [
        ("pause", "refused, told", "accepted, never told"),
        long("late-release", "keeps it", "loses it|too slow to tell"),
        long("lost-reply", "granted all the same", r"refused, free after \d+ s"),
        long("lost-release", "no error, free at once", "no error, successor loses it"),
        long(
            "clock",
            "two holders, refused, told if it asks",
            "two holders, accepted, never told",
        ),
        long("session", "one holder", "one holder"),
        long("commit", "sees the row", "misses the row"),
        long("cancel", "at once", r"after \d+ s"),
    ],
)
def test_each_fault_is_injected_and_judged_by_its_record(fault, ours, control):
    options = [f"--library={name}" for name in (CONTROL, OURS)]
    found, code = lab("survival", *options, f"--fault={fault}", "--repeats=1")
    assert (code, found["missing"], found["broken_controls"]) == (0, {}, [])
    for library, cell in ((OURS, ours), (CONTROL, control)):
        line = found["libraries"][library]
        assert re.fullmatch(cell, line["cells"][fault])
        [run] = line["runs"]
        assert run["proof"]
        assert run["events"]


@pytest.mark.parametrize("name", ["python-redis-lock", "portalocker", "tooz", "kazoo"])
def test_lock_has_the_options_of_its_documentation_inside_a_transaction_too(name):
    assert LIBRARIES[name].open_inside is LIBRARIES[name].open


def grant(actor, at, do="acquire", type="ok"):
    return {
        "t": at * S, "actor": actor, "owner": actor, "do": do, "type": type,
        "name": "x", "token": 0, "deadline": None,
    }  # fmt: skip


def released(actor, at, type="ok"):
    return [grant(actor, at, "release", "invoke"), grant(actor, at, "release", type)]


def write(actor, at, token):
    return {"t": at * S, "actor": actor, "do": "write", "token": token}


def late(token):
    """A writes and releases after B, which has the token 7."""
    grants = [grant("A", 0), grant("B", 2), *released("B", 3)]
    return [*grants, write("B", 3, 7), write("A", 4, token), *released("A", 5, "fail")]


KILL = {"t": 1 * S, "actor": "lab", "do": "fault", "type": "start", "target": "A"}
LATE = {"t": 5 * S, "actor": "lab", "do": "released late"}
LOST = grant("A", 1, "lost")
RELEASED = [grant("A", 0), *released("A", 1, "unknown")]
QUEUE = [
    grant("A", 0),
    *released("A", 1),
    {"t": 9 * S, "actor": "lab", "do": "requests", "commands": 6},
]


def waiters(*order):
    """The waiters ask in the order of their numbers, and are served in this one."""
    asked = [grant("Q", at, type="invoke") | {"owner": at} for at in sorted(order)]
    turns = ([grant("Q", at), *released("Q", at)] for at in range(5, 5 + len(order)))
    served = zip(order, turns, strict=True)
    return asked + [event | {"owner": number} for number, turn in served for event in turn]


@pytest.mark.parametrize(
    ("name", "events", "verdict"),
    [
        ("kill", [grant("A", 0), KILL], "never"),
        ("kill", [grant("A", 0), KILL, grant("B", 4)], "after 3 s"),
        ("kill", [grant("A", -2), grant("B", -1), KILL], "two holders for 2 s"),
        ("pause", late(6), "refused, told at release"),
        ("pause", late(None), "accepted, told at release"),
        ("work", [grant("A", 0), *released("A", 4), grant("B", 4)], "one holder"),
        ("work", [grant("A", 0), grant("B", 2), *released("A", 4)], "two holders for 2 s"),
        ("late-release", [grant("A", 0), grant("B", 4), LATE, grant("C", 9)], "too slow to tell"),
        ("order", [*QUEUE, *waiters(0, 1, 2)], "in order; 2 requests"),
        ("order", [*QUEUE, *waiters(2, 0, 1)], "2 overtaken; 2 requests"),
        ("order", [grant("A", 0), grant("Q", 5), *released("A", 6)], "two holders for 1 s"),
        ("lost-reply", [grant("F", 0, type="invoke")], "refused, never free"),
        ("lost-reply", [grant("F", 0), grant("B", 2), *released("F", 4)], "two holders for 2 s"),
        ("lost-release", RELEASED, "error, never free"),
        ("lost-release", [*RELEASED, grant("B", 3)], "error, free after 2 s"),
        ("lost-release", [*RELEASED, grant("B", 1), grant("C", 2)], "error, successor loses it"),
        ("clock", late(6), "two holders, refused, told at release"),
        ("session", late(None), "two holders, accepted, told at release"),
        ("session", [LOST, *late(None)], "told before the next"),
        ("session", [*late(None), LOST | {"t": 9 * S}], "two holders, accepted, told"),
        ("commit", [grant("A", 0), *released("A", 1)], "never free"),
        ("cancel", [grant("B", 0, type="invoke"), grant("B", 2)], "after 2 s"),
        ("cancel", [grant("B", 0, type="invoke")], "never"),
        ("cancel", [{"do": "does not apply", "actor": "lab", "t": 0, "why": "why"}], "why"),
    ],
)  # fmt: skip
def test_verdict_over_a_record(name, events, verdict):
    assert agreed([CASES[name].judge(events)]) == verdict


def test_cell_shows_the_spread_of_runs_that_disagree():
    runs = [Verdict("after {} s", True, [figure]) for figure in (1.6, 2.4, 3.1)]
    assert agreed(runs[:2]) == "after 2 s"
    assert agreed(runs) == "after 2-3 s"
    assert agreed([*runs, Verdict("never", False)]) == "after 2-3 s (3 of 4); never (1 of 4)"
