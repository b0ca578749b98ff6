"""The contract, run by the backends that need no server, and by one of a third party."""

import threading
from typing import Any

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token
from locking.exceptions import LockLost
from tests.locking.contract import Contract


class ThirdPartyBackend(Backend):
    """The least that a backend can be: what somebody else would write in an afternoon."""

    capabilities = Capabilities(
        summary="A condition variable.",
        exclusion="process",
        session_bound=True,
        wakes_waiters=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        super().reset_after_fork()
        self._changed = threading.Condition()
        self._owners: dict[str, tuple[str, int]] = {}

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        def wake() -> None:
            with self._changed:
                self._changed.notify_all()

        claim.interrupt = wake
        with self._changed:
            self._changed.wait_for(
                lambda: claim.cancelled.is_set() or claim.name not in self._owners,
                min(timeout, threading.TIMEOUT_MAX),
            )
            if claim.name in self._owners or claim.cancelled.is_set():
                return None
            token = clock_token()
            self._owners[claim.name] = (claim.owner, token)
            return Grant(token, float("inf"))

    def release(self, claim: Claim, token: int) -> None:
        with self._changed:
            self.extend(claim, token, 1)
            del self._owners[claim.name]
            self._changed.notify_all()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        if self._owners.get(claim.name, ("",))[0] != claim.owner:
            raise LockLost
        return float("inf")

    def inspect(self) -> list[Held]:
        with self._changed:
            return [
                Held(name=name, owner=owner, token=token)
                for name, (owner, token) in self._owners.items()
            ]

    def probe(self) -> None:
        pass


class TestNone(Contract):
    path = "locking.backends.none.NoneBackend"


class TestProcess(Contract):
    path = "locking.backends.process.ProcessBackend"


class TestThirdParty(Contract):
    path = "tests.locking.test_contract_local.ThirdPartyBackend"
