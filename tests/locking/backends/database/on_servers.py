"""The contract on a real MariaDB or PostgreSQL, and what the rows and sessions there add to it."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any, ClassVar

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockLost, LockUnavailable
from locking.claims import Claim
from locking.handler import create
from locking.lease import LockStore
from locking.testing.calls import acquire_and_release, in_thread, within
from locking.testing.contract_base import Open
from tests.locking.backends.contract import Contract
from tests.locking.backends.database.database_tools import alias_for
from tests.locking.backends.store_drivers import DatabaseDriver
from tests.locking.calls import acquired


class OnServer(Contract):
    """Its waiters are those that the server reports, for all names."""

    down = "nowhere"
    login: ClassVar[str]
    """A user without administrator rights, so limits apply."""
    grants: ClassVar[Sequence[str]]
    """The statements that make the user."""
    refusals: ClassVar[Sequence[tuple[str, str, str]]]
    """A fault, its repair, and what the error says."""
    breaks: ClassVar[bytes]
    """A part of the statement that breaks a lock."""
    holds_next = ""
    """A suffix: the same session holds this other name when the statement arrives late."""

    @pytest.fixture(autouse=True)
    def _database(self, driver: DatabaseDriver) -> None:
        self.database = driver

    def waiting(self, locks: LockStore, name: str) -> int:
        return self.database.connect().waits()

    @pytest.fixture
    def limited(self, _database: None) -> Iterator[LockStore]:
        """The locks of the user, on the same server."""
        root = self.database.connect()
        for statement in self.grants:
            root(statement)
        url = re.sub("//.*@", f"//{self.login}@", self.database.server.url)
        conf = {"BACKEND": self.path, "LOCATION": "limited"}
        with alias_for(url, "limited"), closing(create("user", conf)) as locks:
            yield locks

    def refused(self, locks: LockStore, text: str, name: str) -> None:
        """Check for an error in bounded time, and that nothing is held."""
        with within(10), pytest.raises(LockUnavailable, match=text):
            locks.lock(name).acquire(timeout=0.5)
        assert not locks.held

    @pytest.mark.faults(row=17)
    def test_refusal_is_reported_and_passes(
        self, limited: LockStore, locks: LockStore, name: str
    ) -> None:
        root = self.database.connect()
        for fault, repair, text in self.refusals:
            root(fault)
            try:
                self.refused(limited, text, name)
            finally:
                root(repair)
            for store in (locks, limited):  # another session first: it finds a lock that was left
                assert in_thread(acquire_and_release, store, name, 5)
            limited.close()

    def test_break_that_arrives_late_spares_the_next_grant(
        self, open_store: Open, name: str
    ) -> None:
        far, near = open_store(far=True), open_store()
        late, pinned = self.database.proxies[0].hold_request(self.breaks), near.backend.pinned
        with ThreadPoolExecutor(1) as pool:
            with near.lock(name, ttl=30, timeout=5) as before:
                session = pinned[before.owner]
                breaking = pool.submit(far.break_lock, name)
                assert late.is_held.wait(WAIT_TIMEOUT)
            with near.lock(name + self.holds_next, ttl=30, timeout=5) as lease:
                assert pinned[lease.owner] is session
                assert late.deliver()
                breaking.result(WAIT_TIMEOUT)
                lease.extend(30)

    def test_wait_may_be_longer_than_the_response_timeout(
        self, locks: LockStore, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("locking.backends.database.pool.RESPONSE_TIMEOUT", 1)
        with locks.lock(name, timeout=5):
            assert not in_thread(locks.lock(name).acquire, timeout=2)

    def test_connection_of_a_holder_is_kept_alive(self, locks: LockStore, name: str) -> None:
        with locks.lock(name, timeout=5) as lease:
            session = locks.backend.pinned[lease.owner]  # type: ignore[attr-defined]
            with socket.socket(fileno=os.dup(session.raw.fileno())) as connection:
                assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


class Rows(OnServer):
    """The row lock, which queues on these servers."""

    path = "locking.backends.database.DatabaseBackend"
    also = {"fair": True, "wakes_waiters": True}
    repeats = ("release",)
    breaks = b"token = token + 1"
    codes: ClassVar[Sequence[str]]
    """Of the errors after which a transaction may be repeated."""
    roll_back: ClassVar[str]
    """Let the server refuse each update with the error `{code}`."""
    allow: ClassVar[str]
    """End that."""

    @pytest.mark.faults(row=17)
    def test_statement_that_is_rolled_back_is_repeated(self, locks: LockStore, name: str) -> None:
        root = self.database.connect()
        assert in_thread(acquire_and_release, locks, name, 5)
        for code in self.codes:
            with ThreadPoolExecutor(1) as pool:
                root(self.roll_back.format(code=code))
                try:
                    before = root.requests()
                    waiter = pool.submit(acquire_and_release, locks, name)
                    until(lambda before=before: root.requests() > before + 6, "further attempts")
                    assert not waiter.done()
                finally:
                    root(self.allow)
                assert waiter.result(WAIT_TIMEOUT)

    @pytest.mark.faults(row=16, fired="row locked by a transaction")
    def test_row_that_a_transaction_has_locked_is_waited_for(
        self, locks: LockStore, name: str
    ) -> None:
        root = self.database.connect()
        assert acquire_and_release(locks, name, 5)
        root("BEGIN")
        root("SELECT 1 FROM locking_lockrow FOR UPDATE")
        with ThreadPoolExecutor(1) as pool:
            try:
                self.refused(locks, "1205|lock timeout", name)
                before = root.row_waits()
                waiter = pool.submit(acquire_and_release, locks, name)
                until(lambda: root.row_waits() > before + 1, "a second attempt")
                assert not waiter.done()
            finally:
                root("ROLLBACK")
            assert waiter.result(WAIT_TIMEOUT)

    @pytest.mark.faults(row=12)
    def test_row_of_a_holder_whose_session_ended_stays_held(
        self, locks: LockStore, name: str
    ) -> None:
        lock, root = locks.lock(name, ttl=30), self.database.connect()
        lease = acquired(lock, timeout=5)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(acquire_and_release, locks, name)
            until(lambda: root.waits() == 1, "the waiter")
            root.kill(locks.backend.pinned[lease.owner].id)  # type: ignore[attr-defined]
            until(lambda: root.waits() == 0, "the holder lock being released")
            before = root.requests()
            until(lambda: root.requests() > before + 4, "further attempts of the waiter")
            assert not waiter.done()
            lock.release()
            assert waiter.result(WAIT_TIMEOUT)

    @pytest.mark.faults(row=8, xf=True)
    def test_clock_ahead_makes_two_holders(self, locks: LockStore, name: str) -> None:
        """XF: the row ends early; the token tells the holders apart."""
        old, new = (Claim(name=name, ttl=30) for _ in range(2))
        first = locks.backend.acquire(old, 5)
        self.database.shift_clock(60)
        second = locks.backend.acquire(new, 0)
        self.database.shift_clock(0)
        assert first
        assert second
        assert time.monotonic() < first.deadline, "they do not overlap"
        assert second.token > first.token
        with pytest.raises(LockLost):
            locks.backend.release(old, first.token)
        locks.backend.release(new, second.token)


class Sessions(OnServer):
    """A lock that ends with its holder's session."""

    holds_next = "-next"

    @pytest.fixture(autouse=True)
    def _does_not_look(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let the end of a session be noticed at once or not at all."""
        monkeypatch.setattr("locking.backends.database.session_locks.WATCH_INTERVAL", 3600)

    def test_lock_that_a_session_no_longer_has_is_lost(self, locks: LockStore, name: str) -> None:
        """After a kill, and after a proxy has swapped sessions, where the connection lives."""
        backend, mine = locks.backend, Claim(name=name, owner="me", ttl=6)

        def session() -> Any:
            return backend.pinned["me"]  # type: ignore[attr-defined]

        ends: list[Callable[[], object]] = [
            lambda: self.database.connect().kill(session().id),
            lambda: session().release_locks(),
        ]
        for end in ends:
            for ask in (partial(backend.extend, mine, 0, 5), partial(backend.release, mine, 0)):
                assert backend.acquire(mine, 5)
                end()
                with pytest.raises(LockLost):
                    ask()

    def test_break_that_is_repeated_spares_the_next_holder(
        self, open_store: Open, name: str
    ) -> None:
        """The reply is lost after the first statement has ended the holder's session."""
        far, near, proxy = open_store(far=True), open_store(), self.database.proxies[0]
        lock, first = near.lock(name), proxy.hold_request(self.breaks)
        acquired(lock, timeout=5)
        with ThreadPoolExecutor(2) as pool:
            breaking = pool.submit(far.break_lock, name)
            assert first.is_held.wait(WAIT_TIMEOUT)
            repeated = proxy.hold_request(self.breaks)
            proxy.replies_to_lose = 1
            assert first.deliver()
            assert repeated.is_held.wait(WAIT_TIMEOUT)
            with pytest.raises(LockLost):
                lock.release()
            with near.lock(name, timeout=WAIT_TIMEOUT) as lease:
                assert repeated.deliver()
                assert breaking.result(WAIT_TIMEOUT)
                lease.extend(30)

    def test_release_during_an_extension_leaves_no_lock(self, open_store: Open, name: str) -> None:
        """Such as that of another thread, which has the session meanwhile."""
        far = open_store(far=True)
        late = self.database.proxies[0].hold_request(far.backend.owns[:18].encode())  # type: ignore[attr-defined]
        with ThreadPoolExecutor(1) as pool:
            lease = acquired(far.lock(name), timeout=5)
            extending = pool.submit(lease.extend, 30)
            assert late.is_held.wait(WAIT_TIMEOUT)
            with pytest.raises(LockLost):
                lease.release()
            assert late.deliver()
            extending.result(WAIT_TIMEOUT)
        assert acquire_and_release(open_store(), name, 5)
