"""What many waiters cost the server: a herd against a queue, polling against wake-ups."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import redis
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from devservers import ZooKeeper
from devservers.faults.waiting import until
from loadtest.bench.services import mntr
from loadtest.kernel.history import Recorder
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.steps import LOCK
from loadtest.scenarios.testbed import REDIS, ZOOKEEPER, Testbed
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.handler import create
from locking.lease import LockStore

HERD_RECIPE = "loadtest.recipes.zookeeper_herd.ZooKeeperHerdBackend"
POLLING_RECIPE = "loadtest.recipes.redis_textbook.SetExpireBackend"
WAITERS, TIMEOUT = 6, 30.0
HOLD_SECONDS = 0.8
MAX_COMMANDS = 8
"""Redis commands that a waiter may cost; a queue needs about four, however long it waits."""
COUNTERS = {"requests": "zk_packets_received", "wakes": "zk_sum_node_deleted_watch_count"}


@contextmanager
def _backends(
    testbed: Testbed, connect: Callable[[], LockStore], observe: Callable[[LockStore, Any], None]
) -> Iterator[list[LockStore]]:
    """One recorded backend for the holder and for each waiter, with connections of its own."""
    with ExitStack() as stack:
        backends = []
        for number in range(WAITERS + 1):
            backend = connect()
            stack.callback(backend.close)
            recorder = Recorder(testbed.folder, f"waiter {number}" if number else "holder")
            stack.callback(recorder.close)
            recorder.watch(backend)
            observe(backend, recorder)
            backends.append(backend)
        yield backends


def _herd(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let one process hold and six wait, each in its own session; release one after another."""
    ensemble = testbed.shared.zookeeper
    path = ZOOKEEPER if is_repaired else HERD_RECIPE
    holders: list[int] = []
    may_release = [threading.Event() for _ in range(WAITERS + 1)]

    def wait_for_watches(number: int) -> None:
        until(lambda: int(mntr(ensemble.hosts)["zk_watch_count"]) >= number, "the waiters' watches")

    def wait_for_grants(number: int) -> None:
        until(lambda: len(holders) == number, "the next grant")

    with _backends(testbed, lambda: _connect_zookeeper(ensemble, path), _record_wakes) as backends:
        before = _counters(ensemble)

        def take(number: int) -> None:
            with backends[number].lock(LOCK, timeout=TIMEOUT):
                holders.append(number)
                may_release[number].wait(TIMEOUT)

        with ThreadPoolExecutor(WAITERS + 1) as pool:
            done = [pool.submit(take, 0)]
            wait_for_grants(1)
            for number in range(1, WAITERS + 1):
                done.append(pool.submit(take, number))
                wait_for_watches(number)
            for left in range(WAITERS, 0, -1):
                # A waiter without a watch is not woken: all must have set theirs again.
                wait_for_watches(left)
                may_release[holders[-1]].set()
                wait_for_grants(WAITERS - left + 2)
            may_release[holders[-1]].set()
            for future in done:
                future.result(TIMEOUT)
        after = _counters(ensemble)
    facts = {name: after[name] - before[name] for name in COUNTERS}
    return {
        "waiters": WAITERS,
        **facts,
        "each": round(facts["wakes"] / WAITERS, 1),
        "in_order": int(holders == sorted(holders)),
        "broke": facts["wakes"] > 2 * WAITERS,
    }


def _connect_zookeeper(ensemble: ZooKeeper, path: str) -> LockStore:
    backend = create("zookeeper", {"BACKEND": path, "LOCATION": ensemble.hosts})
    backend.probe()
    return backend


def _record_wakes(store: LockStore, recorder: Recorder) -> None:
    assert isinstance(store.backend, ZooKeeperBackend)
    session = store.backend.session
    assert session is not None
    happened = session.node_changed

    def record(event: Any) -> None:
        recorder.note("wake", lane=recorder.actor)
        happened(event)

    session.node_changed = record  # type: ignore[method-assign]


def _counters(ensemble: ZooKeeper) -> dict[str, int]:
    found = mntr(ensemble.hosts)
    return {name: int(float(found.get(key, 0))) for name, key in COUNTERS.items()}


HERD = Scenario(
    name="herd-against-queue",
    fault="waiters",
    row="L11",
    title=_("A herd of waiters, or a queue"),
    broken=gettext_noop("ZooKeeper, all watch the holder"),
    repaired="zookeeper",
    sentences=(
        _(
            "All %(b_waiters)d waiters watched the holder's node: the releases woke them "
            "%(b_wakes)d times in all, and the server got %(b_requests)d requests."
        ),
        _(
            "In a queue, each of the %(r_waiters)d watched its predecessor: %(r_wakes)d wake-ups "
            "and %(r_requests)d requests."
        ),
        _("That is %(b_each).1f wake-ups per grant in the herd and %(r_each).1f in the queue."),
    ),
    repair=_("Sequential nodes: each waiter watches the node before its own; a release wakes one."),
    immune=_("zookeeper and redis, and database on MariaDB: they queue waiters and wake one."),
    run=_herd,
    needs="ZooKeeper",
    requires_overlap=False,
)


def _polling(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Hold the lock for a while with six waiters, then let each waiter take it once."""
    url = testbed.shared.redis.url
    conf = {"BACKEND": REDIS if is_repaired else POLLING_RECIPE, "LOCATION": url}

    def connect() -> LockStore:
        backend = create("redis", conf)
        with backend.lock("warm", ttl=TIMEOUT):
            """Open the connection and load the scripts."""
        return backend

    with (
        redis.Redis.from_url(url) as client,
        _backends(testbed, connect, _record_polls) as backends,
    ):
        client.config_resetstat()
        asked = threading.Barrier(WAITERS + 1)

        def take(number: int) -> None:
            asked.wait(TIMEOUT)
            with backends[number].lock(LOCK, ttl=TIMEOUT, timeout=TIMEOUT):
                pass

        with ThreadPoolExecutor(WAITERS) as pool:
            with backends[0].lock(LOCK, ttl=TIMEOUT, timeout=TIMEOUT):
                done = [pool.submit(take, number) for number in range(1, WAITERS + 1)]
                asked.wait(TIMEOUT)
                time.sleep(HOLD_SECONDS)
            for future in done:
                future.result(TIMEOUT)
        commands = _count_commands(client)
    return {
        "waiters": WAITERS,
        "held": HOLD_SECONDS,
        "commands": commands,
        "each": round(commands / WAITERS, 1),
        "broke": commands > MAX_COMMANDS * WAITERS,
    }


def _record_polls(store: LockStore, recorder: Recorder) -> None:
    backend = store.backend
    take = getattr(backend, "_take", None)
    if take is None:
        return

    def record(*args: Any) -> Any:
        recorder.note("poll", lane=recorder.actor)
        return take(*args)

    backend._take = record  # type: ignore[attr-defined]


def _count_commands(client: Any) -> int:
    """Return the number of commands from clients; those inside scripts are counted elsewhere."""
    sent = ("eval", "evalsha", "set", "del", "get", "subscribe", "unsubscribe", "xread", "blpop")
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in sent)


POLLING = Scenario(
    name="polling-against-push",
    fault="waiters",
    row="F7",
    title=_("Polling, or waiting to be woken"),
    broken=gettext_noop("SET NX PX, polled"),
    repaired="redis",
    sentences=(
        _(
            "While the lock was held for %(b_held).1f s, %(b_waiters)d polling waiters sent "
            "%(b_commands)d commands."
        ),
        _("Waiters that were woken on release sent %(r_commands)d for the same wait."),
        _("That is %(b_each).1f commands per waiter with polling and %(r_each).1f without."),
    ),
    repair=_("The holder's release wakes the next waiter in the queue; no waiter polls."),
    immune=_("Every backend that declares wakes_waiters; see docs/reference/locks.md."),
    run=_polling,
    requires_overlap=False,
)
