"""A third-party backend in memory whose calls can be made to fail by a test.

It is named by its dotted path, as in settings, and nothing in `locking` knows it.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from locking.backends.base import Backend
from locking.claims import Claim
from locking.exceptions import LockUnavailable
from locking.handler import create
from tests.locking.backends.memory_store import MemoryBackend, Server

PATH = "tests.locking.scripted.ScriptedBackend"


class ScriptedBackend(MemoryBackend):
    """Leases in a dictionary; `then("extend", step)` runs `step` before the next extension."""

    server: Server = None

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.script: dict[str, deque[Callable[[], object]]] = {}
        self.calls: list[tuple[str, float]] = []
        self.ignores_cancel = False
        """Grant even if the claim was cancelled."""
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        Backend.reset_after_fork(self)
        self.server = Server()

    @property
    def tokens(self) -> int:
        """The last token that was granted; a test may set it."""
        return self.server.last_token

    @tokens.setter
    def tokens(self, last: int) -> None:
        self.server.last_token = last

    def then(self, call: str, *steps: Callable[[], object]) -> None:
        """Run `steps` before the next calls of `call`; a step may raise."""
        self.script.setdefault(call, deque()).extend(steps)

    def times(self, call: str) -> list[float]:
        """Return the times at which `call` was called."""
        return [at for name, at in self.calls if name == call]

    def is_cancelled(self, claim: Claim) -> bool:
        return super().is_cancelled(claim) and not self.ignores_cancel


def _scripted(call: str) -> Callable[..., Any]:
    """Return a method that runs the next step of its script, and then does what it should."""
    do = getattr(MemoryBackend, call)

    def run_step(self: ScriptedBackend, *args: Any) -> Any:
        self.calls.append((call, time.monotonic()))
        if steps := self.script.get(call):
            steps.popleft()()
        return do(self, *args)

    return run_step


for call in ("acquire", "release", "extend", "set_depth", "take_over", "inspect", "probe"):
    setattr(ScriptedBackend, call, _scripted(call))


def unavailable() -> None:
    """Fail a step as if the store did not reply."""
    raise LockUnavailable


def scripted(**settings: Any) -> ScriptedBackend:
    """Return a new backend, created as for an entry of LOCKS."""
    return create("scripted", {"BACKEND": PATH, **settings})


def waiters(backend: Backend) -> int:
    """Return the number of waiters of all locks."""
    return sum(held.waiters or 0 for held in backend.inspect())
