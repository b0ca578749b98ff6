"""Continue as the holder of a lease that another process handed over; see `Lease.hand_over`.

A count of 0 in the store marks a lease without a holder. The first take-over changes it to 1, and
gives the grant a new owner: a ticket that is delivered twice makes one holder, and a renewal of the
sender that is still under way changes nothing.
"""

from __future__ import annotations

from typing import Unpack

from locking.claims import Claim, Grant
from locking.exceptions import LockUnavailable
from locking.lease.lease import Lease, LeaseTable, Ticket
from locking.lease.lock import LockOptions, StoreLock
from locking.lease.steps import Call


class TakenOver(StoreLock):
    """A lock whose acquisition continues a grant; after LockUnavailable, it may be tried again."""

    def __init__(self, table: LeaseTable, ticket: Ticket, **options: Unpack[LockOptions]) -> None:
        options.setdefault("ttl", ticket["ttl"])
        super().__init__(table, ticket["name"], **options)
        self._ticket = ticket
        self._unanswered: dict[object, str] = {}
        """By caller: the owner of a take-over without a reply. It may have the grant."""

    def claim(self, caller: object) -> Claim:
        """Return a new claim of the caller, the same owner as before if that got no reply."""
        claim = super().claim(caller)
        claim.owner = self._unanswered.pop(caller, claim.owner)
        return claim

    def request(self, claim: Claim, wait: float) -> Call:
        """Return the call that continues the grant."""
        owner, token, backend = self._ticket["owner"], self._ticket["token"], self.backend

        def take() -> Grant | None:
            try:
                return backend.take_over(claim, owner, token)
            except LockUnavailable:
                self._unanswered[claim.caller] = claim.owner
                raise

        return take, lambda: backend.granted(claim, backend.helper.submit(take)), ()

    def hold(self, claim: Claim, grant: Grant | None, started: float) -> Lease | Claim:
        """Return the lease with the policy of the ticket; see `StoreLock.hold`."""
        lease = super().hold(claim, grant, started)
        if isinstance(lease, Lease):
            lease.epoch, lease.mode = self._ticket["policy"]
        return lease
