"""A process that buys, and that a fault strikes between its look at the stock and its write.

    with LateBuyer(database_url) as first:
        first.start(sale, fault="stop")     # SIGSTOP itself, with the lock in its hand
        first.struck()
        ...
        first.on()                          # SIGCONT
        first.result()                      # {"order": ...} or {"error": ...}

Faults: "stop"; "gil", no other thread of it runs until `on`, its watchdog neither; "wait", only
this thread waits, which is the control.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from shop.models import Sale

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0
TTL = 1.0
"""Seconds of its leases and of its ZooKeeper session, which cannot be shorter here."""


class LateBuyer:
    """The parent's side."""

    def __init__(self, database_url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.shop.late_buyer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "DATABASE_URL": database_url},
        )
        self._fault: str | None = None
        self.is_busy = False
        """Whether the result of what it was started for has not been heard."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def start(
        self, sale: Sale, customer: int, *, fault: str | None = None, patience: float = PATIENCE
    ) -> None:
        """Buy a piece; told that the shop is busy, try again for `patience` seconds."""
        self._fault, self.is_busy = fault, True
        form = {"sale": sale.pk, "customer": customer, "fault": fault, "patience": patience}
        self._tell(json.dumps(form))

    def struck(self) -> None:
        """Wait until the fault has struck."""
        assert self._hear() == {"struck": self._fault}
        if self._fault == "stop":
            _, status = os.waitpid(self._process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)

    def on(self) -> None:
        """End the fault."""
        if self._fault == "stop":
            self._process.send_signal(signal.SIGCONT)
        else:
            self._tell("on")

    def result(self) -> dict[str, Any]:
        """What came of it."""
        said = self._hear()
        self.is_busy = False
        return said

    def locks(self, **changes: dict[str, Any]) -> None:
        """Change its LOCKS."""
        self._tell(json.dumps({"locks": changes}))

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], PATIENCE)[0], "it says nothing"
        line = self._process.stdout.readline()
        assert line, "it has died"
        said: dict[str, Any] = json.loads(line)
        return said


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201


def _strike(fault: str) -> None:
    _say(struck=fault)
    if fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "gil":
        word = ctypes.create_string_buffer(3)
        ctypes.PyDLL(None).read(0, word, 3)  # "on"; PyDLL, unlike CDLL, keeps the GIL
    else:
        sys.stdin.readline()


def _buy(sale: int, customer: int, patience: float) -> dict[str, Any]:
    from locking import policy
    from shop.checkout import place_order
    from shop.errors import Busy, ShopError
    from shop.models import Sale, User

    policy.forget()
    deadline = time.monotonic() + patience
    while True:
        try:
            row = Sale.objects.select_related("stock").get(pk=sale)
            placed = place_order(customer=User(pk=customer), sale=row, quantity=1, key="k")
        except ShopError as error:
            if not isinstance(error, Busy) or time.monotonic() > deadline:
                return {"error": type(error).__name__}
        else:
            return {"order": placed.order.number}


def _serve() -> None:
    import django
    from django.conf import settings

    for conf in settings.LOCKS.values():
        conf["TTL"] = TTL
    settings.LOCKS["zookeeper"]["OPTIONS"] = {"SESSION_TIMEOUT": TTL}
    django.setup()
    from locking import locks
    from locking.failpoints import arm, disarm

    for line in iter(sys.stdin.readline, ""):
        command = json.loads(line)
        if "locks" in command:
            locks.close()
            for alias, change in command["locks"].items():
                settings.LOCKS[alias].update(change)
            continue
        fault = command.pop("fault")

        def strike(fault: str = fault) -> None:
            disarm("purchase.check")
            _strike(fault)

        if fault:
            arm("purchase.check", strike)
        _say(**_buy(**command))


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    _serve()
