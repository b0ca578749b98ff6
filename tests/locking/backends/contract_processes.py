"""Other processes with the backend under test, which tests borrow: starting one takes a second."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from locking.testing.contract_base import Another, ContractBase
from tests.locking.backends.shared_calls import Borrowed, SharedWorker

StartWorker = Callable[[], SharedWorker]
IdleWorkers = dict[str, list[SharedWorker]]
"""Processes between two tests, by DATABASE_URL."""


class OtherProcesses(ContractBase):
    """The fixtures of tests that need other processes, whose leases are renewed."""

    @pytest.fixture
    def other_conf(self, conf: dict[str, Any]) -> dict[str, Any]:
        """The entry of the backend in other processes."""
        return conf

    @pytest.fixture
    def start_worker(
        self, other_conf: dict[str, Any], env: dict[str, str], idle_workers: IdleWorkers
    ) -> Iterator[StartWorker]:
        """Return a function that starts a process, or takes an idle one."""
        idle = idle_workers[env.get("DATABASE_URL", "")]
        used: list[SharedWorker] = []

        def start() -> SharedWorker:
            used.append(idle.pop() if idle else SharedWorker({}, env=env))
            used[-1].configure(other_conf)
            return used[-1]

        yield start
        for worker in used:
            if worker.is_alive and _is_intact(worker):
                idle.append(worker)
            else:
                worker.close()

    @pytest.fixture
    def another(self, start_worker: StartWorker) -> Another:
        """Borrow the processes of the public contract, too."""
        return lambda: Borrowed(start_worker())

    @pytest.fixture
    def worker(self, start_worker: StartWorker) -> SharedWorker:
        return start_worker()


def _is_intact(worker: SharedWorker) -> bool:
    """Return True unless a test has left a command, a reply or a lock behind."""
    tag = uuid.uuid4().hex
    worker.send("retire", tag=tag)
    return not worker.is_silent(5) and worker.receive() == {"tag": tag, "held": []}
