"""What many waiters cost the server: a herd against a queue, polling against wake-ups."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import redis
from django.utils.translation import gettext_noop

from devservers.faults.waiting import until
from loadtest.bench.services import mntr
from loadtest.kernel.history import Recorder
from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import LOCK
from loadtest.scenarios.testbed import REDIS, ZOOKEEPER, Testbed
from locking.handler import create
from locking.lease import LockStore

HERD_RECIPE = "loadtest.recipes.zookeeper_herd.ZooKeeperHerdBackend"
POLLING_RECIPE = "loadtest.recipes.redis_textbook.SetExpireBackend"
WAITERS, TIMEOUT = 6, 30.0
HOLD_SECONDS = 0.8
MAX_COMMANDS = 8
"""Redis commands that a waiter may cost; a queue needs about four, however long it waits."""
COUNTERS = {"requests": "zk_packets_received", "wakes": "zk_sum_node_deleted_watch_count"}
SENT = ("eval", "evalsha", "set", "del", "get", "subscribe", "unsubscribe", "xread", "blpop")
"""Commands that clients send; those inside scripts are counted under other names."""


@contextmanager
def _stores(testbed: Testbed, conf: dict[str, Any], what: str) -> Iterator[list[LockStore]]:
    """One recorded store for the holder and for each waiter, with connections of its own.

    The record also has `what` happened in each: "wake" or "poll".
    """
    with ExitStack() as stack:
        stores = []
        for number in range(WAITERS + 1):
            store = create("redis" if what == "poll" else "zookeeper", conf)
            stack.callback(store.close)
            with store.lock("warm", ttl=TIMEOUT):
                """Open the connection and load the scripts."""
            recorder = Recorder(testbed.folder, f"waiter {number}" if number else "holder")
            stack.callback(recorder.close)
            recorder.watch(store)
            backend: Any = store.backend
            owner, name = (
                (backend, "_take") if what == "poll" else (backend.session, "node_changed")
            )
            if original := getattr(owner, name, None):

                def record(*args: Any, recorder: Any = recorder, original: Any = original) -> Any:
                    recorder.note(what, lane=recorder.actor)
                    return original(*args)

                setattr(owner, name, record)
            stores.append(store)
        yield stores


def _serve_all(
    stores: list[LockStore], wait_for: Callable[[int], object], count: Callable[[], dict[str, int]]
) -> Facts:
    """Let one hold the lock and the others wait for it; release it one after the other.

    `wait_for` returns when so many are waiting; the facts are what `count` counted meanwhile.
    """
    holders: list[int] = []
    may_release = [threading.Event() for _ in stores]
    before = count()

    def take(number: int) -> None:
        with stores[number].lock(LOCK, ttl=TIMEOUT, timeout=TIMEOUT):
            holders.append(number)
            may_release[number].wait(TIMEOUT)

    def has_granted(number: int) -> bool:
        return len(holders) >= number

    with ThreadPoolExecutor(len(stores)) as pool:
        done = [pool.submit(take, 0)]
        until(partial(has_granted, 1), "the first grant")
        for number in range(1, WAITERS + 1):
            done.append(pool.submit(take, number))
            wait_for(number)
        for released in range(WAITERS + 1):
            wait_for(WAITERS - released)
            may_release[holders[-1]].set()
            until(partial(has_granted, min(released + 2, len(stores))), "the next grant")
        for future in done:
            future.result(TIMEOUT)
    facts = {name: value - before[name] for name, value in count().items()}
    return {"waiters": WAITERS, **facts, "in_order": int(holders == sorted(holders))}


@scenario(
    fault="waiters",
    row="L11",
    broken=gettext_noop("ZooKeeper, all watch the holder"),
    repaired="zookeeper",
    needs="ZooKeeper",
)
def herd_against_queue(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let one process hold and six wait, each in its own session."""
    hosts = testbed.stores.zookeeper.hosts

    def wait_for_watches(number: int) -> None:
        # A waiter without a watch is not woken: all must have set theirs again.
        until(lambda: int(mntr(hosts)["zk_watch_count"]) >= number, "the waiters' watches")

    def count() -> dict[str, int]:
        found = mntr(hosts)
        return {name: int(float(found.get(key, 0))) for name, key in COUNTERS.items()}

    conf = {"BACKEND": ZOOKEEPER if is_repaired else HERD_RECIPE, "LOCATION": hosts}
    with _stores(testbed, conf, "wake") as stores:
        facts = _serve_all(stores, wait_for_watches, count)
    each = facts["wakes"] / WAITERS
    return facts | {"each": round(each, 1), "broke": each > 2}


@scenario(fault="waiters", row="F7", broken=gettext_noop("SET NX PX, polled"), repaired="redis")
def polling_against_push(testbed: Testbed, is_repaired: bool) -> Facts:
    """Hold the lock for a while with six waiters, then let each waiter take it once."""
    url = testbed.stores.redis.url
    conf = {"BACKEND": REDIS if is_repaired else POLLING_RECIPE, "LOCATION": url}

    def wait(number: int) -> None:
        time.sleep(HOLD_SECONDS / WAITERS if number else 0.0)

    def count() -> dict[str, int]:
        stats = client.info("commandstats")
        return {
            "commands": sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in SENT)
        }

    with redis.Redis.from_url(url) as client, _stores(testbed, conf, "poll") as stores:
        facts = _serve_all(stores, wait, count)
    each = facts["commands"] / WAITERS
    return facts | {"each": round(each, 1), "broke": each > MAX_COMMANDS}
