"""Continue as the holder of a lease that another process handed over; see `Lease.hand_over`.

A count of 0 in the store marks a lease without a holder. The first take-over changes it to 1, so a
ticket that is delivered twice makes one holder.
"""

from __future__ import annotations

from functools import partial
from typing import Unpack

from locking.backends.base import Backend, Claim, Grant
from locking.lease.lease import Lease, Ticket
from locking.lease.lock import Lock, LockOptions


class TakenOver(Lock):
    """A lock whose acquisition continues the grant of a ticket."""

    def __init__(self, backend: Backend, ticket: Ticket, **options: Unpack[LockOptions]) -> None:
        options.setdefault("ttl", ticket["ttl"])
        super().__init__(backend, ticket["name"], **options)
        self.owner, self._ticket = ticket["owner"], ticket

    def _request(self, claim: Claim, wait: float) -> Grant:
        token = claim.token = self._ticket["token"]
        self.backend.set_depth(claim, token, 1, only_if=0)
        return Grant(token, self.backend.extend(claim, token, claim.ttl))

    async def _arequest(self, claim: Claim, wait: float) -> Grant:
        return await self.backend.helper.run(partial(self._request, claim, wait))

    def _hold(self, claim: Claim, grant: Grant | None, started: float) -> Lease | Claim:
        lease = super()._hold(claim, grant, started)
        if isinstance(lease, Lease):
            lease.epoch, lease.mode = self._ticket["policy"]
        return lease
