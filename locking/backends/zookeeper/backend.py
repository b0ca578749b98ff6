"""A queue of nodes in ZooKeeper (REQUIREMENTS L12), after its own recipe and Curator's.

A claim is an ephemeral sequential node under a parent per name. The lowest number holds the lock
and everyone else watches the node just before its own, so a release wakes one. The node goes with
the session of its process; its creation's zxid is the token, which grows for as long as the
ensemble keeps its data. A node bears the owner's name: a claim whose creation got no answer is
found again by it, rather than made twice.

LOCATION: "host:port,host:port,host:port", with a path behind it for a chroot.
OPTIONS: SESSION_TIMEOUT (6 s; the server may shorten or lengthen it), CONNECT_TIMEOUT (3 s), PREFIX
("/locks"). Needs ZooKeeper 3.5, whose container nodes take empty parents away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from django.core.checks import CheckMessage, Error
from django.utils.translation import gettext_noop
from kazoo.exceptions import NodeExistsError, NoNodeError
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from locking.arguments import is_number
from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.zookeeper.session import (
    INTERRUPTED,
    CreateContainer,
    Session,
    logger,
    translated,
)
from locking.exceptions import LockLost, LockUnavailable

EPHEMERAL, SEQUENTIAL, CONTAINER = 1, 2, 4
OPTIONS: dict[str, Any] = {"SESSION_TIMEOUT": 6.0, "CONNECT_TIMEOUT": 3.0, "PREFIX": "/locks"}
LONGEST_SESSION = 60.0


class ZooKeeperBackend(Backend):
    """Fair, bound to the process's session, and served by any majority of the ensemble."""

    capabilities = Capabilities(
        summary=gettext_noop(
            "Sessions instead of leases, a queue, and tokens of its own; slow to write."
        ),
        exclusion="machines",
        fair=True,
        session_bound=True,
        fencing=True,
        survives_minority=True,
        wakes_waiters=True,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        options = OPTIONS | self.options
        hosts = self.location if isinstance(self.location, str) else ",".join(self.location)
        self._hosts, _, chroot = hosts.partition("/")
        self._prefix = "".join(
            f"/{part}" for part in f"{chroot}/{options['PREFIX']}".split("/") if part
        )
        self._session_timeout: float = options["SESSION_TIMEOUT"]
        self._connect_timeout: float = options["CONNECT_TIMEOUT"]
        self._session: Session | None = None
        self._opening = threading.Lock()
        self._silent = False

    @classmethod
    def check(cls, alias: str, conf: Mapping[str, Any]) -> list[CheckMessage]:
        """No servers, sessions that no server grants, options that nothing reads."""
        options = OPTIONS | dict(conf.get("OPTIONS") or {})
        session, connect, prefix = (options[name] for name in OPTIONS)
        wrong = {
            "E041": not conf.get("LOCATION") and "LOCATION names no ZooKeeper server",
            "E042": not (is_number(session) and 0 < session <= LONGEST_SESSION)
            and f"SESSION_TIMEOUT is {session!r}, not seconds above 0, {LONGEST_SESSION:g} at most",
            "E043": not (is_number(connect) and connect > 0)
            and f"CONNECT_TIMEOUT is {connect!r}, not seconds above 0",
            "E044": not (str(prefix).startswith("/") and str(prefix).strip("/"))
            and f"PREFIX is {prefix!r}, not /a/path",
            "E045": (unknown := sorted(set(options) - set(OPTIONS)))
            and f"has unknown OPTIONS: {', '.join(unknown)}",
        }
        return [
            Error(f"LOCKS[{alias!r}] {why}.", id=f"locking.{number}")
            for number, why in wrong.items()
            if why
        ]

    # --- taking ---------------------------------------------------------------------------

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Stand in the queue until nobody is ahead."""
        end = time.monotonic() + timeout
        session = self._open()
        parent = self._parent(claim.name)
        grant = None
        with translated():
            if timeout <= 0 and self._queue(session, parent):
                return None  # without having left a node that somebody might wait behind
            try:
                grant = self._stand_in_line(session, claim, parent, end)
            finally:
                if grant is None:
                    path = session.places.get(claim.owner)
                    session.withdraw(claim.owner, parent, path, self._connect_timeout)
        return grant

    def _stand_in_line(
        self, session: Session, claim: Claim, parent: str, end: float
    ) -> Grant | None:
        woken, token, tried = threading.Event(), 0, False
        claim.interrupt = woken.set
        while True:
            woken.clear()
            if claim.cancelled.is_set():
                return None
            sent = time.monotonic()
            patience = self._patience(session, end)
            try:
                path = session.places.get(claim.owner)
                if path is None:
                    if token:
                        logger.warning("lost the place in the queue of %r", claim.name)
                    token, line = self._join(session, claim.owner, parent, patience, tried)
                    path = session.places[claim.owner]
                else:
                    line = session.answer(session.client.get_children_async(parent), patience)
                node = path.rpartition("/")[2]
                if node not in line:
                    raise NoNodeError
                ahead = [other for other in line if other[-10:] < node[-10:]]
                if not ahead:
                    return Grant(token, sent + session.timeout)
                remaining = end - time.monotonic()
                if remaining <= 0:
                    return None
                predecessor = max(ahead, key=lambda other: other[-10:])
                session.wait_gone(f"{parent}/{predecessor}", woken, remaining)
            except (NoNodeError, KeyError):
                session.places.pop(claim.owner, None)
                tried = False
            except INTERRUPTED:
                tried = True
                if time.monotonic() > end + self._connect_timeout:
                    raise
                session.wait_up(patience)

    def _join(
        self, session: Session, owner: str, parent: str, patience: float, tried: bool
    ) -> tuple[int, list[str]]:
        """Make the claim's node, or find it when it was made unknown to us: token and queue."""
        client = session.client
        if tried and (found := session.find(owner, parent, patience)):
            path = f"{parent}/{found[0]}"
            stat = session.answer(client.exists_async(path), patience)
            if stat is None:
                raise NoNodeError
            line = session.answer(client.get_children_async(parent), patience)
            session.places[owner] = path
            return stat.czxid, line
        request = Create2(f"{parent}/{owner}-", b"", OPEN_ACL_UNSAFE, EPHEMERAL | SEQUENTIAL)
        while True:
            created, children = session.send(request), client.get_children_async(parent)
            try:
                path, stat = session.answer(created, patience)
                break
            except NoNodeError:
                self._make(session, parent, patience)
        line = session.answer(children, patience)
        session.places[owner] = path  # only now: who has a place has a token
        return stat.czxid, line

    def _make(self, session: Session, parent: str, patience: float) -> None:
        container = CreateContainer(parent, b"", OPEN_ACL_UNSAFE, CONTAINER)
        try:
            session.answer(session.send(container), patience)
        except NodeExistsError:
            pass
        except NoNodeError:
            session.answer(session.client.ensure_path_async(self._prefix), patience)

    def _patience(self, session: Session, end: float) -> float:
        """How long one answer may take: what the caller has left, within what a failover takes."""
        longest = session.timeout + self._connect_timeout
        return max(self._connect_timeout, min(end - time.monotonic(), longest))

    # --- holding --------------------------------------------------------------------------

    def release(self, claim: Claim, token: int) -> None:
        """Delete the node. Where that gets no answer it is tried until the session ends."""
        session = self._session
        path = None if session is None else session.places.pop(claim.owner, None)
        if session is None or path is None:
            raise claim.lost()
        parent = path.rpartition("/")[0]
        with translated():
            try:
                session.answer(session.client.delete_async(path), self._connect_timeout)
            except NoNodeError:
                raise LockLost(f"{claim.name!r} was taken from {claim.owner}.") from None
            except (*INTERRUPTED, LockUnavailable):
                # Perhaps done, perhaps not: the owner's name in the node tells.
                session.up.wait(self._connect_timeout)
                if not session.withdraw(claim.owner, parent, None, self._connect_timeout):
                    raise
            except BaseException:
                session.withdraw(claim.owner, parent, None, 0)  # the keeper will do it
                raise

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """The grant lasts as long as the session, whatever the ttl: is it still there?"""
        session = self._session
        path = None if session is None else session.places.get(claim.owner)
        if session is None or path is None:
            raise claim.lost()
        sent = time.monotonic()
        with translated():
            session.wait_up(0)
            if session.answer(session.client.exists_async(path), session.timeout / 3) is None:
                raise LockLost(f"{claim.name!r} was taken from {claim.owner}.")
        return sent + session.timeout

    # --- looking --------------------------------------------------------------------------

    def inspect(self) -> list[Held]:
        """The head of every queue, as the leader knows them at this moment."""
        session = self._open()
        client, found = session.client, []
        with translated():
            client.sync_async(self._prefix)
            try:
                names = session.answer(client.get_children_async(self._prefix))
            except NoNodeError:
                return []
            queues = [(n, client.get_children_async(f"{self._prefix}/{n}")) for n in names]
            for name, reply in queues:
                try:
                    line = sorted(session.answer(reply), key=lambda node: node[-10:])
                except NoNodeError:
                    continue
                if line:
                    path = f"{self._prefix}/{name}/{line[0]}"
                    found.append((name, line, client.exists_async(path)))
            return [
                Held(
                    name=unquote(name),
                    owner=line[0][:-11],
                    token=stat.czxid,
                    waiters=len(line) - 1,
                )
                for name, line, reply in found
                if (stat := session.answer(reply)) is not None
            ]

    def probe(self) -> None:
        """Ask a server that must ask the leader."""
        session = self._open()
        with translated():
            session.answer(session.client.sync_async("/"), self._connect_timeout)

    def break_lock(self, name: str) -> bool:
        """Delete the holder's node; the holder finds out within a fifth of its session."""
        session, parent = self._open(), self._parent(name)
        with translated():
            line = self._queue(session, parent)
            if not line:
                return False
            first = min(line, key=lambda node: node[-10:])
            try:
                session.answer(session.client.delete_async(f"{parent}/{first}"))
            except NoNodeError:
                return False
        return True

    def _queue(self, session: Session, parent: str) -> list[str]:
        session.client.sync_async(parent)
        try:
            line: list[str] = session.answer(
                session.client.get_children_async(parent), self._connect_timeout
            )
        except NoNodeError:
            return []
        return line

    def _parent(self, name: str) -> str:
        return f"{self._prefix}/{quote(name, safe=':').replace('.', '%2E')}"

    # --- the session ----------------------------------------------------------------------

    def _open(self) -> Session:
        """The session, connected; after one vain wait the next calls fail at once."""
        session = self._session
        if session is None or session.ended:
            with self._opening, translated():
                session = self._session
                if session is None or session.ended:
                    if session is not None:
                        session.close()
                    self._session = session = Session(self, self._hosts, self._session_timeout)
        if not session.up.is_set():
            try:
                session.wait_up(0 if self._silent else self._connect_timeout)
            except LockUnavailable:
                self._silent = True
                raise
        self._silent = False
        return session

    def close(self) -> None:
        """End the session, and with it every lock that this process holds here."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def reset_after_fork(self) -> None:
        """In a forked child."""
        super().reset_after_fork()
        session, self._session = self._session, None
        self._opening, self._silent = threading.Lock(), False
        if session is not None:
            session.abandon()
