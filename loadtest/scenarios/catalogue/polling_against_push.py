"""F7: waiters that poll, and waiters that are woken; commands counted at the Redis server."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import redis
from django.utils.translation import gettext_lazy as _

from loadtest.history.recorder import Recorder
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import REDIS, Stage
from locking.backends.base import Backend
from locking.handler import create

POLLING = "loadtest.recipes.redis_textbook.SetExpireBackend"
WAITERS, HELD, PATIENCE = 6, 0.8, 30.0
MOST = 8
"""Commands that a waiter may cost; a queue needs about four, however long it waits."""


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """One holds for a while, six wait, then each has its turn."""
    url = stage.crew.redis.url
    with ExitStack() as stack:
        direct = stack.enter_context(redis.Redis.from_url(url))
        backends = []
        for number in range(WAITERS + 1):
            backend = create(
                "redis", {"BACKEND": REDIS if is_repaired else POLLING, "LOCATION": url}
            )
            stack.callback(backend.close)
            with backend.lock("warm", ttl=PATIENCE):
                """Opens a connection, and teaches the server its scripts."""
            recorder = Recorder(stage.folder, f"waiter {number}" if number else "holder")
            stack.callback(recorder.close)
            recorder.watch(backend)
            _note_polls(backend, recorder)
            backends.append(backend)
        direct.config_resetstat()
        asked = threading.Barrier(WAITERS + 1)

        def take(number: int) -> None:
            asked.wait(PATIENCE)
            with backends[number].lock("sale:1", ttl=PATIENCE, timeout=PATIENCE):
                pass

        with ThreadPoolExecutor(WAITERS) as pool:
            with backends[0].lock("sale:1", ttl=PATIENCE, timeout=PATIENCE):
                done = [pool.submit(take, number) for number in range(1, WAITERS + 1)]
                asked.wait(PATIENCE)
                time.sleep(HELD)
            for one in done:
                one.result(PATIENCE)
        commands = _commands(direct)
    return {
        "waiters": WAITERS,
        "held": HELD,
        "commands": commands,
        "each": round(commands / WAITERS, 1),
        "broke": commands > MOST * WAITERS,
    }


def _note_polls(backend: Backend, recorder: Recorder) -> None:
    take = getattr(backend, "_take", None)
    if take is None:
        return

    def noted(*args: Any) -> Any:
        recorder.note("poll", lane=recorder.actor)
        return take(*args)

    backend._take = noted  # type: ignore[attr-defined]


def _commands(direct: Any) -> int:
    """What clients have sent; what a script of ours runs inside is counted apart, and left out."""
    sent = ("eval", "evalsha", "set", "del", "get", "subscribe", "unsubscribe", "xread", "blpop")
    stats = direct.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in sent)


SCENARIO = Scenario(
    name="polling-against-push",
    row="F7",
    title=_("Polling against waiting to be woken"),
    broken="SET NX PX, polled",
    repaired="redis",
    sentences=(
        _(
            "While the lock was held for %(b_held).1f s, %(b_waiters)d waiters that poll sent "
            "%(b_commands)d commands."
        ),
        _("Waiters that are woken sent %(r_commands)d for the same wait."),
        _("That is %(b_each).1f against %(r_each).1f commands for each waiter."),
    ),
    repair=_("The holder's release wakes the next in the queue; nobody asks twice."),
    immune=_("Every backend that declares wakes_waiters; see docs/locks.md."),
    play=play,
    is_overlap=False,
)
