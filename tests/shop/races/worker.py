"""What a process of a race does: it obeys `tests.shop.races.process.Process`.

    {"run": [{"do": "buy", ...}, ...], "pause_at": ..., "times": ..., "without": [...]}
    "go"                          every call starts, in a thread of its own
    <- {"reached": "..."}         a call came to the fail point `pause_at` and waits there
    "on"                          all that wait go on
    <- {"done": [...]}            what each call returned

The fork server imports this module once, with the settings of the test's database.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import django
import pytest  # noqa: F401 - multiprocessing looks for it in every child
from django.conf import settings

django.setup()

from django.db import connections  # noqa: E402

from locking import policy  # noqa: E402
from locking.failpoints import arm, disarm  # noqa: E402
from tests.shop.races import actions  # noqa: E402

PATIENCE = 30.0


class Batch:
    """Calls that start together."""

    def __init__(self, say: Any, command: dict[str, Any]) -> None:
        self.say = say
        self.calls = command["run"]
        self.pause_at = command["pause_at"]
        self.times = command["times"]
        self.without = command["without"]
        self.go, self.on = threading.Event(), threading.Event()
        self.guard = threading.Lock()
        self.results: list[dict[str, Any]] = [{}] * len(self.calls)

    def prepare(self) -> None:
        """Everything but the start."""
        policy.invalidate()
        patches = ExitStack()
        for name in self.without:
            patches.enter_context(patch(name, lambda *args, **kwargs: []))
        patches.enter_context(patch.object(actions, "on", self.on))
        if self.pause_at:
            arm(self.pause_at, self.pause)
            patches.callback(disarm, self.pause_at)
        threads = [
            threading.Thread(target=self.run, args=(place, dict(call)))
            for place, call in enumerate(self.calls)
        ]
        for thread in threads:
            thread.start()

        def finish() -> None:
            for thread in threads:
                thread.join()
            patches.close()
            self.say(done=self.results)

        threading.Thread(target=finish).start()

    def pause(self) -> None:
        """At the fail point: the first `times` that come wait for the parent."""
        with self.guard:
            self.times -= 1
            if self.times < 0:
                return
        self.say(reached=self.pause_at)
        self.on.wait(PATIENCE)

    def run(self, place: int, call: dict[str, Any]) -> None:
        """One call, and what came of it."""
        act = getattr(actions, call.pop("do"))
        self.go.wait(PATIENCE)
        began = time.monotonic()
        try:
            result = act(**call)
        except Exception as error:  # noqa: BLE001 - told to the parent
            result = {"error": type(error).__name__, "text": str(error)}
        finally:
            connections.close_all()
        self.results[place] = {**result, "seconds": time.monotonic() - began}


def obey(parent: Connection, ttl: float, redis_url: str) -> None:
    """Until the parent is gone. Settings are the shop's, but for no throttle, and for leases that
    end while the next buyer waits."""
    settings.LOCK_TIMEOUT = ttl + 0.5
    settings.HARD_DEADLINE = 1.3 * max(1.0, settings.LOCK_TIMEOUT)
    settings.BUY_LIMIT = "100000/second"
    for conf in settings.LOCKS.values():
        conf["TTL"] = ttl
    settings.LOCKS["redis"]["LOCATION"] = settings.REDIS_URL = redis_url
    saying = threading.Lock()

    def say(**what: Any) -> None:
        with saying:
            parent.send(what)

    batch: Batch | None = None
    while True:
        try:
            command = parent.recv()
        except EOFError:
            os._exit(0)
        if isinstance(command, dict):
            batch = Batch(say, command)
            batch.prepare()
            say(ready=len(batch.calls))
        elif batch is not None:
            getattr(batch, command).set()
