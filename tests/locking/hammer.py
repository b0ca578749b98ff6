"""A process whose threads want one lock as often as they can get it.

with Hammer(env) as hammer:
    hammer.prepare(conf, "n")
    hammer.start(threads=8, until=time.monotonic() + 3)
    hammer.answer()       # {"grants": [41, 40, ...], "longest": 0.3}
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from loadtest.faults.child import Child

WORK_SECONDS = 0.001
"""What a holder does with the lock: the same for every backend."""
TIMEOUT = 10.0


class Hammer(Child):
    """The parent's side; two processes share the monotonic clock."""

    def __init__(self, env: Mapping[str, str]) -> None:
        super().__init__("tests.locking.hammer", env)

    def prepare(self, conf: Mapping[str, Any], name: str) -> None:
        """Open the backend."""
        self.send({"conf": dict(conf), "name": name})
        self.answer()

    def start(self, *, threads: int, until: float) -> None:
        """Take and release from now to `until`, on the monotonic clock.

        The answer: what each thread got, and how long one waited at most, in seconds.
        """
        self.send({"threads": threads, "until": until})


def _serve() -> None:
    import django

    django.setup()
    from locking import LockTimeout
    from locking.handler import create

    backend: Any = None
    name = ""

    def hammer(threads: int, until: float) -> dict[str, Any]:
        grants, waits = [0] * threads, [0.0] * threads

        def work(number: int) -> None:
            while (asked := time.monotonic()) < until:
                try:
                    with backend.lock(name, timeout=TIMEOUT):
                        waits[number] = max(waits[number], time.monotonic() - asked)
                        grants[number] += 1
                        time.sleep(WORK_SECONDS)
                except LockTimeout:
                    waits[number] = time.monotonic() - asked

        running = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return {"grants": grants, "longest": max(waits)}

    for line in sys.stdin:
        command = json.loads(line)
        answer: dict[str, Any] = {}
        if "conf" in command:
            if backend is not None:
                backend.close()
            backend, name = create("hammer", command["conf"]), command["name"]
            with backend.lock(name, timeout=TIMEOUT):
                pass
        else:
            answer = hammer(**command)
        print(json.dumps(answer), flush=True)  # noqa: T201


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
    _serve()
