"""One ZooKeeper session per process: its nodes, its life and its clean-up.

kazoo's client reconnects and pings, but does not expose when the server last replied, and a steady
stream of requests keeps it from noticing that a server no longer replies. So a thread here sends a
request four times per session timeout. The leader replies to it: it ends the sessions, while a
server that is cut off from it goes on replying to reads. The leader learns within half a tick which
sessions have sent something to another server, and a tick is at most half a session timeout. So a
reply proves that the leader knows of the request before. Every lease is then valid until that one
plus the session timeout, also in a process that was paused meanwhile. Without a reply for a third
of the timeout, the client connects to the next server.

The request is a `sync`, and a transaction while locks are held: a leader that is cut off from the
others goes on replying to a `sync` for some ticks, but a transaction needs the majority. As long as
that accepts it, there is no other leader; a new one begins every session timeout again.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import select
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import KazooState, KeeperState

from locking.backends.zookeeper.queue import owner_of
from locking.exceptions import LockUnavailable

if TYPE_CHECKING:
    from locking.claims import Claim

logger = logging.getLogger("locking")

INTERRUPTED = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)
"""Errors after which a request may be repeated: it, or only its reply, was lost."""


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes after its last child (ZooKeeper 3.5)."""

    type = 19


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Translate the client's errors to LockUnavailable."""
    try:
        yield
    except NoAuthError as error:
        text = "ZooKeeper refused access: the nodes belong to clients with another PASSWORD."
        raise LockUnavailable(text) from error
    except (KazooException, KazooTimeoutError) as error:
        raise LockUnavailable(f"ZooKeeper request failed: {error!r}") from error


class _Credential(str):
    """A text that kazoo does not show when it logs requests."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "..."


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Remembers the socket, and omits two costs of kazoo's handler.

    Its `select` creates and closes an epoll object in each of about ten calls per request, and it
    calls watches in another thread.
    """

    socket_in_use: socket.socket | None = None

    def __init__(self, connect_timeout: float) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout

    def create_connection(self, *args: Any, **options: Any) -> Any:
        # A host that drops packets must not use up the whole session.
        options["timeout"] = self._connect_timeout
        self.socket_in_use = super().create_connection(*args, **options)
        return self.socket_in_use

    def select(
        self, reads: list[Any], writes: list[Any], errors: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        poll = select.poll()
        for one in reads:
            poll.register(one, select.POLLIN)
        for one in writes:
            poll.register(one, select.POLLOUT)
        ready = {number for number, _ in poll.poll(None if timeout is None else timeout * 1000)}
        return (
            [one for one in reads if one.fileno() in ready],
            [one for one in writes if one.fileno() in ready],
            [],
        )

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)  # the callbacks here only set events


class Session:
    """A connected client, the nodes of this process's claims, and the thread that renews them."""

    def __init__(self, hosts: str, timeout: float, password: str) -> None:
        self.timeout = timeout
        """Seconds after the last request at which the server ends the session."""
        self.alive_until = 0.0
        """Monotonic time before which the server does not end the session."""
        self._asked_at = 0.0
        """Monotonic time of the last request that counts, or of the connection."""
        self._renewed = threading.Condition()
        self.up = threading.Event()
        self.ended = False
        """The session cannot be used any more: open another one."""
        self.nodes: dict[str, str] = {}
        """Path of the node by owner; empty again when the session has expired."""
        self.granted: dict[str, Claim] = {}
        """Claims that hold their lock, by owner."""
        self.pending_deletes: dict[str, str] = {}
        """Parent by owner, of nodes that could not be deleted yet."""
        self._waiting: defaultdict[str, set[threading.Event]] = defaultdict(set)
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._handler = _Handler(timeout / 3)
        self.client = KazooClient(
            hosts,
            timeout=timeout,
            handler=self._handler,
            auth_data=[("digest", _Credential(f"locking:{password}"))] if password else None,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5},
        )
        self._learn_timeout()
        self.client.add_listener(self._state_changed)
        self.client.start_async()
        threading.Thread(target=self._run, name="zookeeper-session", daemon=True).start()

    def _learn_timeout(self) -> None:
        """Record the timeout that the server granted, which the client does not expose."""
        connection = self.client._connection
        connect = connection._connect

        def learn(*args: Any) -> Any:
            self._asked_at = time.monotonic()
            read_timeout, connect_timeout = connect(*args)  # read_timeout: 2/3 of it, in ms
            self.timeout = read_timeout * 1.5 / 1000
            self._prove_alive(self._asked_at)  # the leader opened the session, or knew it
            return read_timeout, connect_timeout

        connection._connect = learn

    def send(self, request: Any) -> Any:
        """Send a request; `wait_for` returns its reply."""
        reply = self.client.handler.async_result()
        self.client._call(request, reply)
        return reply

    def wait_for(self, reply: Any, timeout: float | None = None) -> Any:
        """Return the reply to a request; raise LockUnavailable after `timeout` seconds."""
        try:
            return reply.get(timeout=self.timeout if timeout is None else timeout)
        except KazooTimeoutError as error:
            raise LockUnavailable("ZooKeeper did not reply in time.") from error

    def wait_up(self, timeout: float) -> None:
        """Return when connected; raise LockUnavailable after `timeout` seconds."""
        if not self.up.wait(timeout):
            raise LockUnavailable(f"ZooKeeper could not be reached in {timeout:.1f} s.")

    def wait_alive(self, timeout: float) -> float:
        """Return `alive_until`; after a pause of this process, wait for the next renewal."""
        with self._renewed:
            if not self._renewed.wait_for(
                lambda: self.alive_until - time.monotonic() > self.timeout / 4, timeout
            ):
                raise LockUnavailable("ZooKeeper did not confirm the session in time.")
            return self.alive_until

    def _prove_alive(self, asked_at: float) -> None:
        with self._renewed:
            self.alive_until = max(self.alive_until, asked_at + self.timeout)
            self._renewed.notify_all()

    def wait_gone(
        self,
        paths: list[str],
        woken: threading.Event,
        seconds: float,
        reply_timeout: float,
        mark: bytes | None = None,
    ) -> None:
        """Return when one of the nodes is deleted or marked, or `woken` is set.

        Return also when the connection is lost. Without a `mark`, only deletions count.
        """
        with self._guard:
            for path in paths:
                self._waiting[path].add(woken)
        try:
            # Not `exists`, which would leave a watch behind when the node is already deleted.
            # One watcher for all: the client keeps it once per path, however many waits end.
            replies = [self.client.get_async(path, watch=self.node_changed) for path in paths]
            data = [self.wait_for(reply, reply_timeout)[0] for reply in replies]
            if mark is None or mark not in data:
                woken.wait(min(seconds, threading.TIMEOUT_MAX))
        except NoNodeError:
            return
        finally:
            with self._guard:
                for path in paths:
                    self._waiting[path].discard(woken)
                    if not self._waiting[path]:
                        del self._waiting[path]

    def node_changed(self, event: Any) -> None:
        """Wake the waits for a node; called by the client."""
        with self._guard:
            for woken in self._waiting.get(event.path, ()):
                woken.set()

    def _state_changed(self, state: str) -> None:
        """Wake all waits; runs in the client's own thread, so it must not wait."""
        if state == KazooState.CONNECTED:
            self.up.set()
        else:
            self.up.clear()
        if state == KazooState.LOST:
            self.nodes.clear()
            self.alive_until = 0.0
            self.ended = self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        with self._guard:
            for waiters in self._waiting.values():
                for woken in waiters:
                    woken.set()
        self._wake.set()

    def withdraw(self, owner: str, parent: str, path: str | None, timeout: float) -> bool:
        """Delete the node of `owner` now, return True; or leave it to the thread, return False."""
        self.nodes.pop(owner, None)
        self.pending_deletes[owner] = parent
        if not self.up.is_set():
            return False
        try:
            if path is None:
                for node in self.find(owner, parent, timeout):
                    self.wait_for(self.client.delete_async(f"{parent}/{node}"), timeout)
            else:
                self.wait_for(self.client.delete_async(path), timeout)
        except (NoNodeError, NoAuthError):  # or its place is another client's now
            pass
        except (*INTERRUPTED, LockUnavailable):
            self._wake.set()
            return False
        self.pending_deletes.pop(owner, None)
        return True

    def find(self, owner: str, parent: str, timeout: float) -> list[str]:
        """Return the nodes of `owner` after this server has caught up with the leader."""
        self.client.sync_async(parent)
        try:
            children = self.wait_for(self.client.get_children_async(parent), timeout)
        except NoNodeError:
            return []
        return [node for node in children if owner_of(node) == owner]

    def _run(self) -> None:
        while True:
            self._wake.wait(self.timeout / 4)
            self._wake.clear()
            try:
                if self.up.is_set():
                    self._renew()
                for owner, parent in list(self.pending_deletes.items()):
                    self.withdraw(owner, parent, None, self.timeout / 3)
                self._report_lost()
            except Exception:
                logger.exception("ZooKeeper session check failed, will retry")
            if self.ended:
                return

    def _renew(self) -> None:
        """Renew the grants of this process; change the server if this one does not reply."""
        sent, asked_at = time.monotonic(), self._asked_at
        requests = [
            (claim, self.client.exists_async(path))
            for claim in list(self.granted.values())
            if (path := self.nodes.get(claim.owner)) is not None
        ]
        confirmed = self._ask_majority() if self.granted else self.client.sync_async("/")
        if not confirmed.wait(self.timeout / 3):
            with contextlib.suppress(OSError):
                if self._handler.socket_in_use is not None:
                    self._handler.socket_in_use.shutdown(socket.SHUT_RDWR)
            return
        if confirmed.successful() and sent - asked_at >= self.timeout / 4:
            self._prove_alive(asked_at)
            self._asked_at = sent
        for claim, reply in requests:
            if not reply.successful():
                continue
            if reply.value is None:  # an operator has broken the lock
                self.nodes.pop(claim.owner, None)
            elif time.monotonic() < claim.deadline:
                claim.deadline = self.alive_until

    def _ask_majority(self) -> Any:
        """Send a transaction that changes nothing; return its reply."""
        transaction = self.client.transaction()
        transaction.check("/", -1)
        return transaction.commit_async()

    def _report_lost(self) -> None:
        """Report the grants that have ended, and release those whose thread or task has ended."""
        for owner, claim in list(self.granted.items()):
            path, is_abandoned = self.nodes.get(owner), claim.is_abandoned
            if path is not None and time.monotonic() < claim.deadline and not is_abandoned:
                continue
            report_lost = claim.report_lost
            if report_lost is None or owner not in self.granted:  # released at this moment
                continue
            report_lost()
            if is_abandoned:
                self.granted.pop(owner, None)
                if path is not None:
                    self.withdraw(owner, path.rpartition("/")[0], path, self.timeout / 3)

    def close(self) -> None:
        """End the session; the server deletes its nodes."""
        with contextlib.suppress(KazooException, OSError):
            self.client.stop()
            self.client.close()
        self.nodes.clear()
        self.ended = True
        self._wake.set()

    def abandon(self) -> None:
        """Close the copies of the parent's sockets in a forked child, without any message."""
        self.ended = True
        atexit.unregister(self._handler.stop)
        connection = self.client._connection
        for end in (self._handler.socket_in_use, connection._read_sock, connection._write_sock):
            if end is not None:
                end.close()
