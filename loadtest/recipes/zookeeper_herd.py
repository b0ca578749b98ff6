"""One ephemeral node in ZooKeeper that everybody watches (REQUIREMENTS L11). For the lab only.

Correct, and its flaw is what a release costs: the one event wakes every waiter, all of them try to
create the node, one succeeds and the others watch it again. N waiters make N events and N writes a
release, and whoever is quickest goes first. `locking.backends.zookeeper.backend` wakes one.

A caller who gives up while the ensemble is silent may leave its node until its session ends.
"""

from __future__ import annotations

import threading
import time

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.zookeeper.backend import EPHEMERAL, ZooKeeperBackend
from locking.backends.zookeeper.session import INTERRUPTED, Session


class ZooKeeperHerdBackend(ZooKeeperBackend):
    """Every waiter watches the holder."""

    capabilities = Capabilities(
        summary="Textbook: every release wakes every waiter.",
        exclusion="machines",
        session_bound=True,
        fencing=True,
        survives_minority=True,
        wakes_waiters=True,
    )

    def _stand_in_line(
        self, session: Session, claim: Claim, parent: str, end: float
    ) -> Grant | None:
        woken, path, owner = threading.Event(), f"{parent}/holder", claim.owner.encode()
        claim.interrupt = woken.set
        while True:
            woken.clear()
            if claim.cancelled.is_set():
                return None
            sent, patience = time.monotonic(), self._patience(session, end)
            try:
                try:
                    request = Create2(path, owner, OPEN_ACL_UNSAFE, EPHEMERAL)
                    _, stat = session.answer(session.send(request), patience)
                except NodeExistsError:
                    data, stat = session.answer(session.client.get_async(path), patience)
                    if data != owner:  # else ours: only the answer to its creation was lost
                        remaining = end - time.monotonic()
                        if remaining <= 0:
                            return None
                        session.wait_gone(path, woken, remaining)
                        continue
                session.places[claim.owner] = path
                return Grant(stat.czxid, sent + session.timeout)
            except NoNodeError:
                self._make(session, parent, patience)
            except INTERRUPTED:
                if time.monotonic() > end + self._connect_timeout:
                    raise
                session.wait_up(patience)

    def inspect(self) -> list[Held]:
        """This process's own."""
        return [
            Held(name=lease.name, owner=lease.owner, token=lease.token)
            for lease in list(self.held.values())
        ]

    break_lock = Backend.break_lock
    """Not offered: the broken holder would delete its successor's node, which has the same path."""
