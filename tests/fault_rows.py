"""The rows of the fault suite, and what is seen to strike and to come of it in their tests.

    @pytest.mark.faults(row=5, backend="redis", xf=True)
    def test_a_crash_without_persistence(...)

`make faults` runs the tests that are so marked, and tests/fault_page.py writes docs/faults.md from
their reports. While such a test runs, every injector that it uses is written down; one that passes
although no fault was seen to strike fails. Where the fault is the test's own act, as a second
release, or strikes in a process that only the test sees, the marker says so: `fired="..."`. `xf`
says that two holders are expected, and that the test fails unless it sees both.
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import pytest

ROWS = {
    "1": ("holder stopped past twice its lease", "naive oversells, fenced and conditional do not"),
    "2": ("GIL held longer than the lease", "the late commit is refused"),
    "3": ("holder killed", "next grant within lease (session) + 1 s"),
    "4": ("failover to a replica without the lock", "tokens do not repeat, the stock holds"),
    "5": ("Redis killed without persistence", "tokens grow, the stock holds"),
    "6": ("a RedLock master restarts empty", "the stock holds; delayed restart repairs"),
    "7": ("clocks of RedLock masters jump", "three: the stock holds; two: the lock holds"),
    "8": ("the store's clock jumps", "the stock holds, waits stay bounded; ZooKeeper unmoved"),
    "9": ("RedLock masters down", "two: granted; three: refused, votes taken back"),
    "10": ("the grant's reply is lost", "ownership is read back"),
    "11": ("a SET arrives after its time-out", "harmless: undone, expired or fenced"),
    "12": ("the holder's session expires", "told in time, next holder at once, late write refused"),
    "13": ("connection lost while waiting", "no orphan, no place lost unsaid"),
    "14": ("ZooKeeper leader killed, stopped, cut off", "one holder; again in 3, 6, 8 s"),
    "15": ("MariaDB killed five times under load", "nothing acknowledged is lost"),
    "16": ("a client stopped inside its transaction", "others get a bounded 503"),
    "17": ("the store refuses", "bounded 503, never a grant; deadlocks tried again"),
    "18": ("the store evicts", "refused by check"),
    "19": ("the broker redelivers", "one effect per scheduled time"),
    "20": ("worker or its child killed", "done once, soon"),
    "21": ("two beats, one stopped", "one effect per scheduled time"),
    "22": ("200 readers of a cold or expired key", "one rebuild, one more per lease"),
    "23": ("8 and 64 contenders", "queues: no inversions; others: Jain >= 0.9"),
    "24": ("re-entry, foreign, double and late release", "exact count; an error; successor safe"),
    "25": ("backend switched under load", "drained: exact with naive; forced: with the fence"),
    "F6": ("work outlasts the lease", "the watchdog renews"),
    "F7": ("many waiters", "a queue wakes one, at the same cost however many wait"),
    "F8": ("lock released before the commit", "released after it, nothing is oversold"),
    "M": ("a guard is taken out of the shop", "the checker finds it, and nothing without that"),
}
"""What happens and what is promised: catalogue, failures (F), mutants (M)."""
INJECTORS = {
    "devservers.base:Server": {"kill": "killed", "pause": "stopped"},
    "loadtest.resilience.jobs.machines:Machine": {"kill_child": "child killed"},
    "loadtest.load.actor:Actor": {"struck": "struck between look and write", "kill": "killed"},
    "loadtest.faults.injectors:ExpireSession": {"strike": "session expired"},
    "loadtest.faults.ensemble:Partitioned": {"cut_off": "leader cut off"},
    "loadtest.faults.clock:Clock": {"shift": "clock shifted"},
    "loadtest.faults.proxy:Proxy": {
        "hold": "packets held",
        "cut": "connections cut",
        "lead_to": "address moved",
    },
    "tests.locking.actor:Actor": {"kill": "killed", "pause": "stopped"},
    "tests.locking.redlock_masters:Masters": {"restart_empty": "restarted empty"},
    "tests.shop.races.process:Process": {"kill": "killed", "reached": "held at a fail point"},
}
SLACK = 2.0
"""Seconds that a loaded machine may add to a promised time; `lab endure` tells the figures."""
VENDORS = {"mysql": "MariaDB", "sqlite": "SQLite"}
TIDYING = ("__exit__", "close", "_end")
"""What such a function does to a process is no fault."""
ORDERS = ("CONFIG SET", "REPLICAOF", "SCRIPT FLUSH", "KILL", "SET GLOBAL", "CREATE TRIGGER")
"""Commands to a server that are one."""

_fired: Counter[str] = Counter()
_seen: Counter[str] = Counter()


def fired(what: str) -> None:
    """For a fault that no injector of the list made; call it when it has been seen to strike."""
    _fired[what] += 1


def seen(what: str, times: int = 1) -> None:
    """What came of it."""
    _seen[what] += times


# --- watching a test --------------------------------------------------------------------------


@contextmanager
def _watched() -> Iterator[None]:
    """Write down what strikes and what comes of it, in this process."""
    _fired.clear()
    _seen.clear()
    inner = threading.local()

    def noted(owner: str, do: Callable[..., Any], word: str) -> Callable[..., Any]:
        @functools.wraps(do)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
            is_fault = sys._getframe(1).f_code.co_name not in TIDYING
            if is_fault and not getattr(inner, "busy", False):
                _fired[f"{owner or type(self).__name__} {word}"] += 1
            inner.busy = True
            try:
                return do(self, *args, **kwargs)
            finally:
                inner.busy = False

        return wrapper

    def ordered(do: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(do)
        def wrapper(self: Any, *words: Any, **kwargs: Any) -> Any:
            text = " ".join(map(str, words))
            if order := next((one for one in ORDERS if text.startswith(one)), None):
                # Its subject, but no names, passwords or numbers.
                subject = text.removeprefix(order).split()[:1] if order != "KILL" else []
                _fired[" ".join([order, *subject]) if order != "REPLICAOF" else order] += 1
            return do(self, *words, **kwargs)

        return wrapper

    def heard(do: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(do)
        def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
            _seen[type(self).__name__] += 1
            do(self, *args, **kwargs)

        return wrapper

    def audited(do: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(do)
        def wrapper(self: Any, **books: Any) -> None:
            do(self, **books)
            if self.oversold:
                _seen["oversold by naive"] += 1
            else:
                _seen["audit ok" if self.ok else "audit in between"] += 1
            if self.stale_writes_refused:
                _seen["stale write refused"] += 1

        return wrapper

    def checked(do: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(do)
        def wrapper(self: Any, breaches: list[str], *args: Any) -> None:
            do(self, breaches, *args)
            _seen["checker ok" if self.ok else "found by the checker"] += 1

        return wrapper

    with ExitStack() as stack:
        for path, methods in INJECTORS.items():
            module, _, _ = path.partition(":")
            if module in sys.modules:
                owner = resolve_name(path)
                for method, word in methods.items():
                    do = getattr(owner, method)
                    stack.enter_context(patch.object(owner, method, noted("", do, word)))
        orders = [
            ("redis:Redis", "execute_command"),
            ("tests.locking.database_tools:Root", "__call__"),
        ]
        for path, method in orders:
            if path.partition(":")[0] in sys.modules:
                owner = resolve_name(path)
                stack.enter_context(patch.object(owner, method, ordered(getattr(owner, method))))
        for path, wrap in (
            ("locking.exceptions:LockError", heard),
            ("shop.errors:ShopError", heard),
            ("shop.administration.audit:StockAudit", audited),
            ("loadtest.history.checker:Findings", checked),
        ):
            if path.partition(":")[0] in sys.modules:
                owner = resolve_name(path)
                stack.enter_context(patch.object(owner, "__init__", wrap(owner.__init__)))
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    marker = item.get_closest_marker("faults")
    if marker is None:
        return (yield)
    with _watched():
        try:
            outcome = yield
        finally:
            if own := marker.kwargs.get("fired"):
                _fired[own] += 1
            facts = {
                "row": str(marker.kwargs["row"]),
                "backend": _backend(item, marker),
                "xf": marker.kwargs.get("xf", False),
                "test": _name(item),
                "fired": dict(_fired),
                "seen": dict(_seen),
            }
            item.user_properties.append(("faults", facts))
        assert _fired, "the fault was not seen to strike"
    return outcome


def _name(item: pytest.Item) -> str:
    """As the page names it: where it is written, without parameters."""
    function = item.function  # type: ignore[attr-defined]
    file = Path(function.__code__.co_filename).relative_to(Path(__file__).parent)
    return f"{file}::{function.__qualname__.replace('.', '::')}"


def _backend(item: pytest.Item, marker: pytest.Mark) -> str:
    from django.db import connection

    params = getattr(getattr(item, "callspec", None), "params", {})
    found = marker.kwargs.get("backend")
    if found is None:
        found = next((params[one] for one in ("store", "backend", "way") if one in params), None)
    if found is None and (cls := getattr(item, "cls", None)):
        found = getattr(cls, "path", "").split(".")[-2:-1]
    name = " to ".join(found) if isinstance(found, list | tuple) else found or "any"
    if "database" in name and " on " not in name:  # else it has a server of its own
        name = name.replace("database", f"database on {VENDORS[connection.vendor]}")
    return name


# --- the report of a run ----------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults-report", type=Path, help="where the marked tests' facts go (JSON)")


_began = time.monotonic()
_facts: dict[str, dict[str, Any]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that hears of all tests, wherever they ran."""
    for name, facts in report.user_properties:
        if name == "faults" and isinstance(facts, dict):
            known = _facts.setdefault(report.nodeid, {**facts, "verdict": "ok", "seconds": 0.0})
            known["seconds"] += report.duration if report.when == "call" else 0
            if report.failed:
                known["verdict"] = "failed"


def pytest_sessionfinish(session: pytest.Session) -> None:
    file = session.config.getoption("--faults-report")
    if file is not None and not hasattr(session.config, "workerinput"):
        file.parent.mkdir(parents=True, exist_ok=True)
        report = {"seconds": time.monotonic() - _began, "tests": list(_facts.values())}
        file.write_text(json.dumps(report, indent=1))
