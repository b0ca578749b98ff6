"""Wrong semaphores and read-write locks; `test_contract_mutants` runs their contract on each.

Each differs from the Redis backend in one line of its scripts, or in one method.
"""

import hashlib
from typing import Any, ClassVar

import pytest

from devservers import Redis
from locking.backends.redis import scripts
from locking.backends.redis.backend import RedisBackend
from locking.claims import Claim
from locking.testing.contract_base import ContractBase
from tests.locking.backends.contract_shared_order import SharedOrder

HERE = "tests.locking.backends.shared_mutants"


class OneSlotTooMany(RedisBackend):
    def take_args(self, claim: Claim, entry: str) -> tuple[str, ...]:
        args = super().take_args(claim, entry)
        return (*args[:-1], str(claim.slots + 1)) if claim.slots > 0 else args


class OtherScript(RedisBackend):
    """Replaces one line of the scripts, in this process."""

    line: ClassVar[tuple[str, str]]

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        for script in scripts.SHARED_SCRIPTS.values():
            script.source = script.source.replace(*self.line)
            script.sha = hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest()
        assert any(self.line[1] in one.source for one in scripts.SHARED_SCRIPTS.values())


class SlotStaysTakenAfterExpiry(OtherScript):
    line = ("if owner and left <= 0 then", "if owner and left <= -3600000 then")


class ReadersPassAWaitingWriter(OtherScript):
    line = ("redis.call('LLEN', queue) == 0 and", "true and")


class ReleaseIgnoresOwner(OtherScript):
    line = ("drop(caller)", "drop(first_end() or caller)")


class WriterDoesNotWaitForReaders(OtherScript):
    line = ("return size == 0", "return redis.call('HEXISTS', lock, 'writer') == 0")


class DeadWriterKeepsReadersOut(OtherScript):
    line = ("'NUMSUB', channel)[2] == 0", "'NUMSUB', channel)[2] < 0")


class LastComesFirst(OtherScript):
    line = ("'RPUSH', queue", "'LPUSH', queue")


class ReleaseGrantsToNoOne(OtherScript):
    line = ("drop(caller)\ngrant_waiting()", "drop(caller)\n-- grant_waiting()")


class OnRedis(ContractBase):
    down = "redis://127.0.0.1:1/0"

    @pytest.fixture
    def location(self, redis_server: Redis) -> str:
        return redis_server.url


MUTANTS = [
    OneSlotTooMany,
    SlotStaysTakenAfterExpiry,
    ReadersPassAWaitingWriter,
    ReleaseIgnoresOwner,
    WriterDoesNotWaitForReaders,
    DeadWriterKeepsReadersOut,
    LastComesFirst,
    ReleaseGrantsToNoOne,
]
for one in MUTANTS:
    globals()[f"Test{one.__name__}"] = type(
        f"Test{one.__name__}", (OnRedis, SharedOrder), {"path": f"{HERE}.{one.__name__}"}
    )


class TestSharedControl(OnRedis, SharedOrder):
    """The backend that the mutants are made of."""

    path = "locking.backends.redis.RedisBackend"
