"""A process of the shop for races: it does what it is told, from the start line on.

The parent's handle is `tests.shop.races.process.Process`. Commands and answers are JSON lines:

    {"run": [{"do": "buy", ...}, ...], "pause_at": ..., "times": ..., "without": [...]}  -> ready
    go                            every call starts, in a thread of its own
    <- {"reached": "..."}         a call came to the fail point `pause_at` and waits there
    on                            all that wait go on
    <- {"done": [...]}            what each call returned
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import django
from django.conf import settings

PATIENCE = 30.0


def setup() -> None:
    """Settings as the shop's own, but for shorter leases."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    for conf in settings.LOCKS.values():
        conf["TTL"] = float(os.environ["RACE_TTL"])
    django.setup()


class Batch:
    """Calls that start together."""

    def __init__(self, command: dict[str, Any]) -> None:
        self.calls = command["run"]
        self.pause_at = command.get("pause_at")
        self.times = command.get("times", 1)
        self.without = command.get("without", [])
        self.go, self.on = threading.Event(), threading.Event()
        self.guard = threading.Lock()
        self.threads: list[threading.Thread] = []
        self.results: list[dict[str, Any]] = [{}] * len(self.calls)

    def prepare(self) -> None:
        """Everything but the start."""
        from locking import policy
        from locking.failpoints import arm, disarm

        policy.forget()
        patches = ExitStack()
        for name in self.without:
            patches.enter_context(patch(name, lambda *args, **kwargs: None))
        if self.pause_at:
            arm(self.pause_at, self.pause)
        self.threads = [
            threading.Thread(target=self.run, args=(place, dict(call)))
            for place, call in enumerate(self.calls)
        ]
        for thread in self.threads:
            thread.start()

        def finish() -> None:
            for thread in self.threads:
                thread.join()
            patches.close()
            if self.pause_at:
                disarm(self.pause_at)
            say(done=self.results)

        threading.Thread(target=finish).start()

    def pause(self) -> None:
        """At the fail point: the first `times` that come wait for the parent."""
        with self.guard:
            self.times -= 1
            if self.times < 0:
                return
        say(reached=self.pause_at)
        self.on.wait(PATIENCE)

    def run(self, place: int, call: dict[str, Any]) -> None:
        """One call, and what came of it."""
        from django.db import connections

        from tests.shop.races import actions

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


_saying = threading.Lock()


def say(**what: Any) -> None:
    """A line to the parent."""
    with _saying:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()


def main() -> None:
    """Obey until the parent closes the pipe."""
    setup()
    say(hello=os.getpid())
    batch: Batch | None = None
    for line in sys.stdin:
        word = line.strip()
        if word == "go" and batch:
            batch.go.set()
        elif word == "on" and batch:
            batch.on.set()
        else:
            batch = Batch(json.loads(line))
            batch.prepare()
            say(ready=len(batch.calls))
    os._exit(0)


if __name__ == "__main__":
    main()
