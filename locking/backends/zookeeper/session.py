"""One ZooKeeper session per process: what it holds, whether it still lives, what it must clear up.

kazoo's client reconnects and pings, but tells nobody when the server last heard from it, and a
steady stream of requests keeps it from noticing a server that no longer answers. So a thread here
asks a question five times per session time-out. The answer proves that the session lived when the
question was sent; every lease is then good until that moment plus the session time-out, also in a
process that was stopped meanwhile. No answer for a third of it, and the next server is tried.
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
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.serialization import Create2
from kazoo.protocol.states import KazooState, KeeperState

from locking.exceptions import LockUnavailable

if TYPE_CHECKING:
    from locking.backends.base import Backend

logger = logging.getLogger("locking")

INTERRUPTED = (ConnectionLoss, OperationTimeoutError, SessionExpiredError, SessionMovedError)
"""What may be asked again: the request, or only its answer, was lost on the way."""


class CreateContainer(Create2):  # type: ignore[misc]
    """A node that the server removes once its last child has gone (ZooKeeper 3.5)."""

    type = 19


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """The client's own errors never leave a backend."""
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        raise LockUnavailable(f"ZooKeeper does not serve: {error!r}") from error


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Keeps the socket at hand, and spares what makes the client slow.

    Its own `select` makes and closes an epoll object for every one of the ten or so calls that a
    request takes, and watches are called by way of another thread.
    """

    socket_in_use: socket.socket | None = None

    def __init__(self, connect_timeout: float) -> None:
        super().__init__()
        self._connect_timeout = connect_timeout

    def create_connection(self, *args: Any, **options: Any) -> Any:
        # A host that swallows packets must not use up the whole session.
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
        callback.func(*callback.args)  # ours only set events


class Session:
    """A connected client, the nodes that stand for this process's claims, and their keeper."""

    def __init__(self, backend: Backend, hosts: str, timeout: float) -> None:
        self.backend = backend
        self.timeout = timeout
        """Seconds after the last contact at which the server ends the session."""
        self.up = threading.Event()
        self.ended = False
        """The client has given up for good: open another session."""
        self.places: dict[str, str] = {}
        """Path of the node by owner; a place is gone from here when its session has ended."""
        self._orphans: dict[str, str] = {}
        self._waiting: defaultdict[str, set[threading.Event]] = defaultdict(set)
        self._guard = threading.Lock()
        self._look = threading.Event()
        self._handler = _Handler(timeout / 3)
        self.client = KazooClient(
            hosts,
            timeout=timeout,
            handler=self._handler,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 1.5, "max_delay": 0.5},
        )
        self._learn_timeout()
        self.client.add_listener(self._changed)
        self.client.start_async()
        threading.Thread(target=self._keep, name="zookeeper-keeper", daemon=True).start()

    def _learn_timeout(self) -> None:
        """A server may grant less than was asked for, and the client tells nobody."""
        connection = self.client._connection
        connect = connection._connect

        def learn(*args: Any) -> Any:
            read_timeout, connect_timeout = connect(*args)  # read_timeout: 2/3 of it, in ms
            self.timeout = read_timeout * 1.5 / 1000
            return read_timeout, connect_timeout

        connection._connect = learn

    # --- asking ---------------------------------------------------------------------------

    def send(self, request: Any) -> Any:
        """Put a request on the wire; its answer is awaited with `answer`."""
        reply = self.client.handler.async_result()
        self.client._call(request, reply)
        return reply

    def answer(self, reply: Any, patience: float | None = None) -> Any:
        """The answer to a request, or LockUnavailable when it takes longer than `patience`."""
        try:
            return reply.get(timeout=self.timeout if patience is None else patience)
        except KazooTimeoutError as error:
            raise LockUnavailable("ZooKeeper does not answer.") from error

    def wait_up(self, patience: float) -> None:
        """Return when connected; LockUnavailable after `patience` seconds."""
        if not self.up.wait(patience):
            raise LockUnavailable(f"ZooKeeper could not be reached in {patience:.1f} s.")

    def wait_gone(self, path: str, woken: threading.Event, seconds: float) -> None:
        """Return when the node at `path` is gone, the connection is, or `woken` is set."""
        with self._guard:
            self._waiting[path].add(woken)
        try:
            # Not `exists`, which would leave its watch behind when the node has gone already.
            # One watcher for all: the client keeps it once per path, however many waits give up.
            self.answer(self.client.get_async(path, watch=self._happened))
            woken.wait(min(seconds, threading.TIMEOUT_MAX))
        except NoNodeError:
            return
        finally:
            with self._guard:
                self._waiting[path].discard(woken)
                if not self._waiting[path]:
                    del self._waiting[path]

    def _happened(self, event: Any) -> None:
        with self._guard:
            for woken in self._waiting.get(event.path, ()):
                woken.set()

    def _changed(self, state: str) -> None:
        """In the client's own thread, so without waiting for anything."""
        if state == KazooState.CONNECTED:
            self.up.set()
        else:
            self.up.clear()
        if state == KazooState.LOST:
            self.places.clear()
            self.ended = self.client.client_state in (KeeperState.CLOSED, KeeperState.AUTH_FAILED)
        with self._guard:
            for waiters in self._waiting.values():
                for woken in waiters:
                    woken.set()
        self._look.set()

    # --- clearing up ----------------------------------------------------------------------

    def withdraw(self, owner: str, parent: str, path: str | None, patience: float) -> bool:
        """Delete the node of `owner`, now if that can be done, else later; whether it is done."""
        self.places.pop(owner, None)
        self._orphans[owner] = parent
        if not self.up.is_set():
            return False
        try:
            if path is None:
                self._sweep(owner, parent, patience)
            else:
                self.answer(self.client.delete_async(path), patience)
        except NoNodeError:
            pass
        except (*INTERRUPTED, LockUnavailable):
            self._look.set()
            return False
        self._orphans.pop(owner, None)
        return True

    def _sweep(self, owner: str, parent: str, patience: float) -> None:
        for node in self.find(owner, parent, patience):
            self.answer(self.client.delete_async(f"{parent}/{node}"), patience)

    def find(self, owner: str, parent: str, patience: float) -> list[str]:
        """The nodes of `owner`, after whatever another server had still to be told about them."""
        self.client.sync_async(parent)
        try:
            children = self.answer(self.client.get_children_async(parent), patience)
        except NoNodeError:
            return []
        return [node for node in children if node[:-11] == owner]

    # --- keeping --------------------------------------------------------------------------

    def _keep(self) -> None:
        while True:
            self._look.wait(self.timeout / 5)
            self._look.clear()
            try:
                if self.up.is_set():
                    self._ask()
                for owner, parent in list(self._orphans.items()):
                    self.withdraw(owner, parent, None, self.timeout / 3)
                self._tell()
            except Exception:
                logger.exception("the keeper of the ZooKeeper session stumbled")
            if self.ended:
                return

    def _ask(self) -> None:
        """Renew what this process holds, or look for another server when this one is silent."""
        leases = list(self.backend.held.values())
        sent = time.monotonic()
        asked = [
            (lease, self.client.exists_async(path))
            for lease in leases
            if (path := self.places.get(lease.owner)) is not None
        ]
        sign = self.client.exists_async("/")
        if not sign.wait(self.timeout / 3):
            with contextlib.suppress(OSError):
                if self._handler.socket_in_use is not None:
                    self._handler.socket_in_use.shutdown(socket.SHUT_RDWR)
            return
        for lease, reply in asked:
            if not reply.successful():
                continue
            if reply.value is None:  # broken from outside
                self.places.pop(lease.owner, None)
            elif not lease.lost:
                lease.deadline = sent + self.timeout

    def _tell(self) -> None:
        """Mark the leases that have ended, and free those whose holder has."""
        for lease in list(self.backend.held.values()):
            path = self.places.get(lease.owner)
            if path is not None and not lease.lost and not lease.orphaned:
                continue
            if not lease.is_held:  # released at this moment
                continue
            lease.mark_lost()
            if lease.orphaned:
                lease.forget()
                if path is not None:
                    self.withdraw(lease.owner, path.rpartition("/")[0], path, self.timeout / 3)

    def close(self) -> None:
        """End the session; its nodes go with it."""
        with contextlib.suppress(KazooException, OSError):
            self.client.stop()
            self.client.close()
        self.places.clear()
        self.ended = True
        self._look.set()

    def abandon(self) -> None:
        """In a forked child: close our copies of the parent's sockets without a word."""
        self.ended = True
        atexit.unregister(self._handler.stop)
        connection = self.client._connection
        for end in (self._handler.socket_in_use, connection._read_sock, connection._write_sock):
            if end is not None:
                end.close()
