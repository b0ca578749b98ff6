"""L11: every release wakes every waiter, or one; counted at the ZooKeeper server."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

from django.utils.translation import gettext_lazy as _

from devservers import ZooKeeper
from loadtest.bench.services import mntr
from loadtest.faults.waiting import until
from loadtest.history.recorder import Recorder
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import ZOOKEEPER, Stage
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.handler import create

HERD = "loadtest.recipes.zookeeper_herd.ZooKeeperHerdBackend"
WAITERS, PATIENCE = 6, 30.0
ASKED = {
    "requests": "zk_packets_received",
    "wakes": "zk_sum_node_deleted_watch_count",
}


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """One holds and six wait, each in a session of its own; one release after the other."""
    ensemble = stage.crew.zookeeper
    holders: list[int] = []
    go_on = [threading.Event() for _ in range(WAITERS + 1)]
    with ExitStack() as stack:
        backends = []
        for number in range(WAITERS + 1):
            backend = _session(ensemble, ZOOKEEPER if is_repaired else HERD)
            stack.callback(backend.close)
            recorder = Recorder(stage.folder, f"waiter {number}" if number else "holder")
            stack.callback(recorder.close)
            recorder.watch(backend)
            _note_wakes(backend, recorder)
            backends.append(backend)
        before = counters(ensemble)

        def take(number: int) -> None:
            with backends[number].lock("sale:1", timeout=PATIENCE):
                holders.append(number)
                go_on[number].wait(PATIENCE)

        with ThreadPoolExecutor(WAITERS + 1) as pool:
            done = [pool.submit(take, 0)]
            until(lambda: holders, "the first grant")
            for number in range(1, WAITERS + 1):
                done.append(pool.submit(take, number))
                until(partial(_are_watching, ensemble, number), "its watch")
            for left in range(WAITERS, 0, -1):
                # All must have looked again: who has no watch is not woken.
                until(partial(_are_watching, ensemble, left), "all of them watching")
                go_on[holders[-1]].set()
                granted = WAITERS - left + 2
                until(partial(_are, holders, granted), "a grant")
            go_on[holders[-1]].set()
            for one in done:
                one.result(PATIENCE)
        after = counters(ensemble)
    facts = {name: after[name] - before[name] for name in ASKED}
    return {
        "waiters": WAITERS,
        **facts,
        "each": round(facts["wakes"] / WAITERS, 1),
        "in_order": int(holders == sorted(holders)),
        "broke": facts["wakes"] > 2 * WAITERS,
    }


def _session(ensemble: ZooKeeper, path: str) -> ZooKeeperBackend:
    backend = create("zookeeper", {"BACKEND": path, "LOCATION": ensemble.hosts})
    assert isinstance(backend, ZooKeeperBackend)
    backend.probe()
    return backend


def _note_wakes(backend: ZooKeeperBackend, recorder: Recorder) -> None:
    session = backend._session
    assert session is not None
    happened = session._happened

    def noted(event: Any) -> None:
        recorder.note("wake", lane=recorder.actor)
        happened(event)

    session._happened = noted  # type: ignore[method-assign]


def counters(ensemble: ZooKeeper) -> dict[str, int]:
    """What the server has counted since its start."""
    told = mntr(ensemble.hosts)
    return {name: int(float(told.get(key, 0))) for name, key in ASKED.items()}


def _are_watching(ensemble: ZooKeeper, number: int) -> bool:
    return int(mntr(ensemble.hosts)["zk_watch_count"]) >= number


def _are(holders: list[int], number: int) -> bool:
    return len(holders) == number


SCENARIO = Scenario(
    name="herd-against-queue",
    row="L11",
    title=_("A herd against a queue"),
    broken="ZooKeeper, everybody watches the holder",
    repaired="zookeeper",
    sentences=(
        _(
            "%(b_waiters)d waiters watched the one node of the holder: its releases woke them "
            "%(b_wakes)d times, and the server got %(b_requests)d requests."
        ),
        _(
            "In the queue each watches its predecessor: %(r_wakes)d wake-ups and %(r_requests)d "
            "requests for the same %(r_waiters)d."
        ),
        _("That is %(b_each).1f wake-ups for each grant against %(r_each).1f."),
    ),
    repair=_("Sequential nodes: a waiter watches the one in front of it, and a release wakes one."),
    immune=_("zookeeper; redis and the database on MariaDB queue, too, and wake one."),
    play=play,
    is_overlap=False,
)
