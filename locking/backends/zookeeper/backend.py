"""A queue of nodes in ZooKeeper, after ZooKeeper's recipe and Curator's.

A claim is an ephemeral sequential node under a parent per name. The lowest number holds the lock
and each other claim watches the node before its own, so a release wakes one. The node ends with
the session of its process; the zxid of its creation is the token, which grows as long as the
ensemble keeps its data. A node's name contains the owner: a claim whose creation got no reply finds
its node by that name and does not create a second one. Semaphores and read-write locks have the
same queue with other rules, see `queue.py`.

LOCATION: "host:port,host:port,host:port", followed by a path for a chroot.
OPTIONS: SESSION_TIMEOUT (6 s; the server may shorten or lengthen it), CONNECT_TIMEOUT (3 s), PREFIX
("/locks"), PASSWORD: only clients with the same one use the nodes that this one creates. Requires
ZooKeeper 3.5, which deletes empty container nodes.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, ClassVar
from urllib.parse import quote, unquote

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Create2
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from locking.backends.base import Backend
from locking.backends.options import path, seconds, text
from locking.backends.zookeeper import queue as nodes
from locking.backends.zookeeper.session import (
    INTERRUPTED,
    CreateContainer,
    Session,
    logger,
    translated,
)
from locking.claims import Capabilities, Claim, Grant, Held
from locking.exceptions import LockUnavailable

EPHEMERAL, SEQUENTIAL, CONTAINER = 1, 2, 4
LONGEST_SESSION = 60.0

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[\w.-]+)(:[0-9]{1,5})?")


class ZooKeeperBackend(Backend):
    """Fair, bound to the process's session, available with any majority of the ensemble."""

    capabilities = Capabilities(
        summary=gettext_noop(
            "Sessions instead of leases, a queue, and tokens of its own; slow to write."
        ),
        exclusion="machines",
        fair=True,
        session_bound=True,
        fencing=True,
        tokens_outlive_failover=True,
        survives_minority=True,
        wakes_waiters=True,
        lists_holders=True,
        shared=True,
    )

    known_options: ClassVar = {
        "SESSION_TIMEOUT": seconds(6.0, at_most=LONGEST_SESSION),
        "CONNECT_TIMEOUT": seconds(3.0),
        "PREFIX": path("/locks"),
        "PASSWORD": text(""),
    }

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        options = self.options
        hosts = self.location if isinstance(self.location, str) else ",".join(self.location)
        self._hosts, _, chroot = hosts.partition("/")
        self._prefix = "".join(
            f"/{part}" for part in f"{chroot}/{options['PREFIX']}".split("/") if part
        )
        self._session_timeout: float = options["SESSION_TIMEOUT"]
        self._connect_timeout: float = options["CONNECT_TIMEOUT"]
        self._acl = CREATOR_ALL_ACL if options["PASSWORD"] else OPEN_ACL_UNSAFE
        self.session: Session | None = None
        self._opening = threading.Lock()
        self._fails_fast = False

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """Check the options, and that LOCATION names servers."""
        found = super().check(alias, conf)
        hosts = conf.get("LOCATION")
        names = hosts.partition("/")[0].split(",") if isinstance(hosts, str) else hosts
        if not isinstance(names, list | tuple) or not all(
            isinstance(name, str) and _HOST.fullmatch(name.strip()) for name in names or [""]
        ):
            wrong = f"LOCKS[{alias!r}] LOCATION is no list of servers: give host:port,host:port."
            found.append(Error(wrong, id="locking.E041"))
        return found

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Wait in the queue until this claim is the first."""
        end = time.monotonic() + timeout
        session = self._open()
        parent = self._parent(claim.name)
        grant = None
        with translated():
            if timeout <= 0 and nodes.watched(claim.slots, queue := self.queue(claim.name)):
                nodes.check_slots(claim, queue)
                claim.holder = Held(name=claim.name, owner=nodes.owner_of(queue[0]))
                return None  # without a node that another claim could wait for
            try:
                grant = self._wait_in_queue(session, claim, parent, end)
                if grant is not None:
                    session.granted[claim.owner] = claim
            finally:
                if grant is None:
                    path = session.nodes.get(claim.owner)
                    session.withdraw(claim.owner, parent, path, self._connect_timeout)
        return grant

    def _wait_in_queue(
        self, session: Session, claim: Claim, parent: str, end: float
    ) -> Grant | None:
        woken, token, may_exist = threading.Event(), 0, False
        claim.interrupt = woken.set
        while True:
            woken.clear()
            if claim.cancelled.is_set():
                return None
            sent = time.monotonic()
            timeout = self._reply_timeout(session, end)
            try:
                path = session.nodes.get(claim.owner)
                if path is None:
                    if token:
                        logger.warning(
                            "queue position of lock %r lost, joining the queue again", claim.name
                        )
                    token, queue = self._join(session, claim, parent, timeout, may_exist)
                    path = session.nodes[claim.owner]
                else:
                    queue = session.wait_for(session.client.get_children_async(parent), timeout)
                node = path.rpartition("/")[2]
                if node not in queue:
                    raise NoNodeError
                ahead = nodes.in_order(other for other in queue if other[-10:] < node[-10:])
                nodes.check_slots(claim, ahead)
                watched = nodes.watched(claim.slots, ahead)
                if not watched:
                    if (claim.slots or 0) > 0 and len(ahead) + 1 < len(queue):
                        set_data = session.client.set_async(path, nodes.GRANTED)
                        session.wait_for(set_data, timeout)
                    return Grant(token, min(sent + session.timeout, session.wait_alive(timeout)))
                remaining = end - time.monotonic()
                if remaining <= 0:
                    claim.holder = Held(name=claim.name, owner=nodes.owner_of(ahead[0]))
                    return None
                mark = nodes.GRANTED if nodes.awaits_mark(claim.slots, ahead) else None
                paths = [f"{parent}/{other}" for other in watched]
                session.wait_gone(paths, woken, remaining, timeout, mark)
            except (NoNodeError, KeyError):
                session.nodes.pop(claim.owner, None)
                may_exist = False
            except INTERRUPTED:
                may_exist = True
                if time.monotonic() > end + self._connect_timeout:
                    raise
                session.wait_up(timeout)

    def _join(
        self, session: Session, claim: Claim, parent: str, timeout: float, may_exist: bool
    ) -> tuple[int, list[str]]:
        """Create the claim's node, or find it if it may exist; return the token and the queue."""
        client, owner = session.client, claim.owner
        if may_exist and (found := session.find(owner, parent, timeout)):
            path = f"{parent}/{found[0]}"
            stat = session.wait_for(client.exists_async(path), timeout)
            if stat is None:
                raise NoNodeError
            queue = session.wait_for(client.get_children_async(parent), timeout)
            session.nodes[owner] = path
            return stat.czxid, queue
        prefix = f"{parent}/{nodes.label(claim)}-"
        request = Create2(prefix, b"", self._acl, EPHEMERAL | SEQUENTIAL)
        while True:
            created, children = session.send(request), client.get_children_async(parent)
            try:
                path, stat = session.wait_for(created, timeout)
                break
            except NoNodeError:
                self._create_parent(session, parent, timeout)
        queue = session.wait_for(children, timeout)
        session.nodes[owner] = path  # only now: an owner in `nodes` has a token
        return stat.czxid, queue

    def _create_parent(self, session: Session, parent: str, timeout: float) -> None:
        container = CreateContainer(parent, b"", self._acl, CONTAINER)
        try:
            session.wait_for(session.send(container), timeout)
        except NodeExistsError:
            pass
        except NoNodeError:
            session.wait_for(session.client.ensure_path_async(self._prefix, self._acl), timeout)

    def _reply_timeout(self, session: Session, end: float) -> float:
        """Return the timeout of one reply: the caller's time left, at most that of a failover."""
        longest = session.timeout + self._connect_timeout
        return max(self._connect_timeout, min(end - time.monotonic(), longest))

    def release(self, claim: Claim, token: int) -> None:
        """Delete the node. Without a reply this is repeated until the session ends."""
        session = self.session
        if session is not None:
            session.granted.pop(claim.owner, None)
        path = None if session is None else session.nodes.pop(claim.owner, None)
        if session is None or path is None:
            raise claim.lost()
        parent = path.rpartition("/")[0]
        with translated():
            try:
                session.wait_for(session.client.delete_async(path), self._connect_timeout)
            except NoNodeError:
                raise claim.lost() from None
            except (*INTERRUPTED, LockUnavailable):
                # The outcome is unknown: look for a node with the owner's name.
                session.up.wait(self._connect_timeout)
                if not session.withdraw(claim.owner, parent, None, self._connect_timeout):
                    raise
            except BaseException:
                session.withdraw(claim.owner, parent, None, 0)  # the session's thread will do it
                raise

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Check that the node exists: the grant lasts as long as the session, not for `ttl`."""
        session = self.session
        path = None if session is None else session.nodes.get(claim.owner)
        if session is None or path is None:
            raise claim.lost()
        with translated():
            session.wait_up(0)
            if session.wait_for(session.client.exists_async(path), session.timeout / 3) is None:
                raise claim.lost()
        return session.wait_alive(session.timeout / 3)

    def inspect(self) -> list[Held]:
        """Return the holders of every queue, from a server that has caught up with the leader."""
        session = self._open()
        with translated():
            session.client.sync_async(self._prefix)
            try:
                names = session.wait_for(session.client.get_children_async(self._prefix))
            except NoNodeError:
                return []
            return self._held(session, [f"{self._prefix}/{name}" for name in names])

    def holders(self, name: str) -> list[Held]:
        """Return the holders of one queue."""
        session, parent = self._open(), self._parent(name)
        with translated():
            session.client.sync_async(parent)
            return self._held(session, [parent])

    def _held(self, session: Session, parents: list[str]) -> list[Held]:
        client, found = session.client, []
        for parent, reply in [(each, client.get_children_async(each)) for each in parents]:
            with suppress(NoNodeError):
                queue = nodes.in_order(session.wait_for(reply))
                held = nodes.holders(queue)
                for node in held:
                    stat = client.exists_async(f"{parent}/{node}")
                    name = unquote(parent.rpartition("/")[2])
                    found.append((name, node, len(queue) - len(held), stat))
        return [
            Held(name=name, owner=nodes.owner_of(node), token=stat.czxid, waiters=more)
            for name, node, more, reply in found
            if (stat := session.wait_for(reply)) is not None
        ]

    def probe(self) -> None:
        """Send a sync, which reaches the leader."""
        session = self._open()
        with translated():
            session.wait_for(session.client.sync_async("/"), self._connect_timeout)

    def nodes_down(self) -> list[str]:
        """Return the servers that serve no client; each is asked on a connection of its own."""
        servers, limit = collect_hosts(self._hosts)[0], self._connect_timeout / 6
        return [f"{host}:{port}" for host, port in servers if not _serves(host, port, limit)]

    def break_lock(self, name: str) -> bool:
        """Delete the first holder's node, who learns that in a quarter of the session timeout."""
        session, parent = self._open(), self._parent(name)
        with translated(), suppress(NoNodeError):
            for node in self.queue(name)[:1]:
                session.wait_for(session.client.delete_async(f"{parent}/{node}"))
                return True
        return False

    def queue(self, name: str) -> list[str]:
        """Return the nodes of a name, the holder's first."""
        session, parent = self._open(), self._parent(name)
        session.client.sync_async(parent)
        try:
            children = session.client.get_children_async(parent)
            return nodes.in_order(session.wait_for(children, self._connect_timeout))
        except NoNodeError:
            return []

    def _parent(self, name: str) -> str:
        return f"{self._prefix}/{quote(name, safe=':').replace('.', '%2E')}"

    def _open(self) -> Session:
        """Return the connected session; after one timeout, calls fail at once until it is up."""
        session = self.session
        if session is None or session.ended:
            with self._opening, translated():
                session = self.session
                if session is None or session.ended:
                    if session is not None:
                        session.close()
                    password = self.options["PASSWORD"]
                    session = Session(self._hosts, self._session_timeout, password)
                    self.session = session
        if not session.up.is_set():
            try:
                session.wait_up(0 if self._fails_fast else self._connect_timeout)
            except LockUnavailable:
                self._fails_fast = True
                raise
        self._fails_fast = False
        return session

    def close(self) -> None:
        """End the session, and with it every lock that this process holds."""
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def reset_after_fork(self) -> None:
        """Abandon the parent's session."""
        session, self.session = self.session, None
        self._opening, self._fails_fast = threading.Lock(), False
        if session is not None:
            session.abandon()


def _serves(host: str, port: int, timeout: float) -> bool:
    """Send `srvr`. A server without the others replies that it serves nothing, or not at all."""
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(b"srvr")
            reply = connection.recv(4096)
    except OSError:
        return False
    return bool(reply) and b"not currently serving" not in reply
