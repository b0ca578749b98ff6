"""One ephemeral node in ZooKeeper that all waiters watch. For the lab only.

It is correct, but each release wakes every waiter: all of them try to create the node, one succeeds
and the others watch it again. N waiters cause N events and N writes per release, and the fastest
acquires the lock. `locking.backends.zookeeper` wakes one.

The node of a caller that gives up while the ensemble does not respond may stay until its session
ends.
"""

from __future__ import annotations

import threading
import time

from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from locking.backends.base import Backend
from locking.backends.zookeeper.backend import EPHEMERAL, ZooKeeperBackend
from locking.backends.zookeeper.session import INTERRUPTED, Session
from locking.claims import Capabilities, Claim, Grant


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

    def _wait_in_queue(
        self, session: Session, claim: Claim, parent: str, end: float
    ) -> Grant | None:
        woken, path, owner = threading.Event(), f"{parent}/holder", claim.owner.encode()
        claim.interrupt = woken.set
        while True:
            woken.clear()
            if claim.cancelled.is_set():
                return None
            sent, timeout = time.monotonic(), self._reply_timeout(session, end)
            try:
                try:
                    request = Create2(path, owner, OPEN_ACL_UNSAFE, EPHEMERAL)
                    _, stat = session.wait_for(session.send(request), timeout)
                except NodeExistsError:
                    data, stat = session.wait_for(session.client.get_async(path), timeout)
                    if data != owner:  # otherwise only the reply to its creation was lost
                        remaining = end - time.monotonic()
                        if remaining <= 0:
                            return None
                        session.wait_gone([path], woken, remaining, timeout)
                        continue
                session.nodes[claim.owner] = path
                return Grant(stat.czxid, sent + session.timeout)
            except NoNodeError:
                self._create_parent(session, parent, timeout)
            except INTERRUPTED:
                if time.monotonic() > end + self._connect_timeout:
                    raise
                session.wait_up(timeout)

    break_lock = Backend.break_lock
    """Not supported: the holder would then delete its successor's node, which has the same path."""
