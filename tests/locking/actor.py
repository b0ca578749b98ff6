"""Another process that takes locks on command: to be killed, paused, or raced against.

    with Actor(conf) as other:
        other.acquire("sale:1", timeout=0)      # -> {"ok": True, "owner": ..., "token": ...}
        other.kill()                            # SIGKILL while it holds

The parent writes one JSON command a line, the child answers with one JSON line each.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadtest.faults.child import Child

if TYPE_CHECKING:
    from locking.lease import Lock


class Actor(Child):
    """The parent's handle of one child process with one backend, made from a LOCKS entry."""

    def __init__(self, conf: Mapping[str, Any], *, env: Mapping[str, str] | None = None) -> None:
        super().__init__("tests.locking.actor", env)
        self.be(conf)

    def be(self, conf: Mapping[str, Any]) -> None:
        """Have the backend of this entry from now on."""
        self.send({"conf": dict(conf)})
        self.answer()

    def acquire(self, name: str, **options: Any) -> dict[str, Any]:
        """Take a lock there; options: timeout, ttl, renew."""
        self.send({"do": "acquire", "name": name, **options})
        return self.answer()

    def release(self, name: str) -> dict[str, Any]:
        """Release it there."""
        self.send({"do": "release", "name": name})
        return self.answer()

    def lease(self, name: str) -> dict[str, Any]:
        """What the holder there believes."""
        self.send({"do": "lease", "name": name})
        return self.answer()

    def crowd(self, name: str, size: int, ttl: float) -> None:
        """Let so many threads there wait for it, each to release it at once."""
        self.send({"do": "crowd", "name": name, "size": size, "ttl": ttl})
        self.answer()

    def count_up(self, path: Path, name: str, times: int) -> None:
        """Let it read, add one and write the number in a file `times` times, under the lock."""
        self.send({"do": "count", "path": str(path), "name": name, "times": times})


def _serve() -> None:
    import django

    django.setup()
    from locking.backends.base import Backend
    from locking.exceptions import LockError
    from locking.handler import create

    backend: Backend | None = None
    held: dict[str, Lock] = {}

    def obey(command: dict[str, Any]) -> dict[str, Any]:
        nonlocal backend
        if "conf" in command:
            backend = create("actor", command["conf"])
            return {"ok": True}
        assert backend is not None
        name = command["name"]
        match command["do"]:
            case "acquire":
                lock = backend.lock(name, ttl=command.get("ttl"), renew=command.get("renew", True))
                timeout = command.get("timeout")
                if not lock.acquire(timeout=timeout):
                    return {"ok": False}
                held[name] = lock
                lease = lock.lease
                assert lease is not None
                return {"ok": True, "owner": lease.owner, "token": lease.token}
            case "release":
                held.pop(name).release()
                return {"ok": True}
            case "lease":
                lease = held[name].lease
                assert lease is not None
                return {"ok": True, "lost": lease.lost, "token": lease.token}
            case "crowd":
                for _ in range(command["size"]):
                    lock = backend.lock(name, ttl=command["ttl"], timeout=60)
                    threading.Thread(target=_enter, args=[lock], daemon=True).start()
                return {"ok": True}
            case "count":
                return _count(backend, Path(command["path"]), name, command["times"])
        raise ValueError(command)

    for line in sys.stdin:
        try:
            answer = obey(json.loads(line))
        except LockError as error:
            answer = {"ok": False, "error": type(error).__name__, "message": str(error)}
        print(json.dumps(answer), flush=True)  # noqa: T201


def _enter(lock: Lock) -> None:
    with lock:
        pass


def _count(backend: Any, path: Path, name: str, times: int) -> dict[str, Any]:
    """The critical section that a lock is for: nothing in it is atomic."""
    tokens = []
    for _ in range(times):
        lock = backend.lock(name)
        lock.acquire()
        lease = lock.lease
        with path.open("r+") as file:
            number = int(file.read())
            # A think time, the same for every backend: what makes an unguarded race visible.
            time.sleep(0.001)
            file.seek(0)
            file.write(f"{number + 1:08d}")
        tokens.append(lease.token)
        lock.release()
    return {"ok": True, "tokens": tokens}


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
    _serve()
