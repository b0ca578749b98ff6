"""The active policy, as all threads of a process share it."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.db import Error, connections, router
from django.db.models import QuerySet

from locking.conf import has_policy, mode_warning, policy_settings
from locking.exceptions import LockUnavailable
from locking.fork import after_fork_in_child
from locking.models import LockPolicy
from locking.refresh import clock
from locking.threads import HelperThread

MAX_AGE = 1.0
"""Seconds for which a process may act on the policy that it read."""
FRESH = 0.5
"""Seconds after which the policy is read again while its users have the previous one."""
READ_TIMEOUT = 2.0
"""Seconds that a caller without a deadline of its own waits for a read of the policy."""
MAX_PATIENCE = 32
"""READ_TIMEOUTs after which a read counts as hung, at most; doubled with every one that hangs."""
FAILURE_PAUSE = 0.25
"""Seconds after a failed read for which all callers get its error without another read."""

_kept: list[Any] = []
"""Connections of the reading threads: a forked child that closed them would end their sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The policy as one process read it."""

    backend: str
    """The backend that grants; during a hand-over the new one."""
    mode: str
    epoch: int
    read_at: float
    """Time before the read, on `locking.refresh.clock`."""
    draining: bool = False
    """True during a switch."""
    still_held: frozenset[str] | None = frozenset()
    """Names that the old backend may still hold; None stands for all names."""
    old: str = ""
    """The backend that may still hold them."""
    unchanged_since: float = math.inf
    """Time after this process first read the switch in this state."""

    @property
    def is_safe(self) -> bool:
        """False if the project has a warning about the mode."""
        return not mode_warning(self.mode)

    def grants(self, name: str) -> bool:
        """Return whether the lock `name` may be granted now."""
        return self.still_held is not None and name not in self.still_held


def current(max_age: float | None = None, timeout: float | None = None) -> Policy:
    """Return the active policy, read at most `max_age` (default MAX_AGE) seconds ago.

    Raise LockUnavailable if it has to be read, and the database does not respond within `timeout`
    (default READ_TIMEOUT) seconds or did not a moment ago. Without LOCK_POLICY, it is that of the
    first backend, and nothing is read.
    """
    found = _found(max_age)
    if isinstance(found, Policy):
        return found
    timeout = READ_TIMEOUT if timeout is None else timeout
    try:
        return found.result(min(timeout, threading.TIMEOUT_MAX))
    except TimeoutError:
        raise _slow(timeout) from None


async def acurrent(max_age: float | None = None, timeout: float | None = None) -> Policy:
    """Return the active policy to a task, whose event loop goes on meanwhile; see `current`."""
    found = _found(max_age)
    if isinstance(found, Policy):
        return found
    timeout = READ_TIMEOUT if timeout is None else timeout
    try:
        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(found)  # cancelling it does not stop the read
    except TimeoutError:
        raise _slow(timeout) from None


def _found(max_age: float | None) -> Policy | Future[Policy]:
    if not has_policy():
        return Policy(backend=policy_settings()["BACKEND"], mode="", epoch=0, read_at=math.inf)
    return reader.get(MAX_AGE if max_age is None else max_age)


def _read() -> Policy:
    read_at = clock()
    row = stored_policy()
    is_handed_over = row.still_held is not None
    draining = row.state == LockPolicy.State.DRAINING
    return Policy(
        backend=row.next_backend if is_handed_over else row.backend,
        mode=row.next_mode if is_handed_over else row.mode,
        epoch=row.epoch,
        read_at=read_at,
        draining=draining,
        old=row.backend,
        still_held=None if draining and not is_handed_over else frozenset(row.still_held or ()),
        unchanged_since=first_seen(row),
    )


def database_alias() -> str:
    """Return the alias in DATABASES of the database that is written."""
    return router.db_for_write(LockPolicy)


class _Reader:
    """Reads the policy in one thread, on a connection of its own.

    The caller's connection would be wrong: its transaction may see an old snapshot, and a router
    may send its reads to a replica. In a thread of its own Django opens a connection of its own,
    and the callers can stop waiting for it. A read that hangs is left to its thread, and another
    one is started: a connection that was cut may never tell.
    """

    def __init__(self) -> None:
        self._generation = 0
        """Grows when the policy is invalidated, or a read hangs."""
        self.thread = HelperThread("lock-policy")
        self._start()
        after_fork_in_child(self._start)

    def _start(self) -> None:
        self._guard = threading.Lock()
        self._known: Policy | None = None
        self._last: Future[Policy] | None = None
        self._retry_at = self._hangs_at = 0.0
        self._patience = 1
        """READ_TIMEOUTs after which a read counts as hung."""

    def get(self, max_age: float) -> Policy | Future[Policy]:
        """Return the policy, or the read to wait for. From FRESH seconds on, it is read again."""
        if known := self._younger(min(FRESH, max_age)):
            return known
        if asyncio._get_running_loop() is None and _in_test_case():
            self._known = now = _read()
            return now
        reading = self._request()
        return self._younger(max_age) or reading

    def _younger(self, max_age: float) -> Policy | None:
        known = self._known
        return known if known and clock() - known.read_at < max_age else None

    def invalidate(self) -> None:
        """Make the next caller start a read, also while an earlier one is under way."""
        with self._guard:
            self._generation += 1
            self._known = self._last = None

    def _request(self) -> Future[Policy]:
        """Return the read that is under way or has just failed, else a new one."""
        with self._guard:
            last, now = self._last, clock()
            if last is not None and not last.done() and now >= self._hangs_at:
                self.thread.end()  # when it comes back, if it ever does
                self._generation += 1
                self._patience = min(2 * self._patience, MAX_PATIENCE)
                last = None
            if last is None or (last.done() and now >= self._retry_at):
                self._hangs_at = now + self._patience * READ_TIMEOUT
                self._last = last = self.thread.submit(partial(self._refresh, self._generation))
            return last

    def _refresh(self, generation: int) -> Policy:
        try:
            value = self._read_on_own_connection()
        except BaseException:
            self._retry_at = clock() + FAILURE_PAUSE
            raise
        with self._guard:
            if generation == self._generation:  # not invalidated meanwhile
                self._known, self._retry_at, self._patience = value, 0.0, 1
        return value

    def _read_on_own_connection(self) -> Policy:
        connection = connections[database_alias()]
        if connection not in _kept:
            _kept.append(connection)
        was_open = connection.connection is not None
        try:
            return _read_in_autocommit(connection)
        except LockUnavailable:
            connection.close()
            if not was_open:
                raise
            return _read_in_autocommit(connection)  # the server had closed an idle connection


def _slow(timeout: float) -> LockUnavailable:
    problem = f"The lock policy was not read within {timeout:g} s: the database is slow."
    return LockUnavailable(problem)


def _read_in_autocommit(connection: Any) -> Policy:
    with database_errors("read"):
        if not connection.get_autocommit():  # DATABASES may say so
            connection.set_autocommit(True)
    return _read()


def _in_test_case() -> bool:
    """Return True in the transaction of a django.test.TestCase: only its connection sees its rows.

    `transaction.atomic(durable=True)` makes the same exception.
    """
    blocks = connections[database_alias()].atomic_blocks
    return bool(blocks) and bool(getattr(blocks[0], "_from_testcase", False))


reader = _Reader()


@contextmanager
def database_errors(done: str) -> Iterator[None]:
    """Raise LockUnavailable for an error of the database; the policy cannot be `done` then."""
    try:
        yield
    except Error as error:  # the base of DatabaseError and InterfaceError
        raise LockUnavailable(f"The lock policy cannot be {done}: {error}") from error


def policy_rows() -> QuerySet[LockPolicy]:
    """Return the policy row in the database that is written, never in a replica."""
    return LockPolicy.objects.using(database_alias())


def stored_policy() -> LockPolicy:
    """Return the policy row, created from LOCK_POLICY if it does not exist.

    Raise LockUnavailable if the database does not reply.
    """
    conf = policy_settings()
    start = {"backend": conf["BACKEND"], "mode": conf.get("MODE", "")}
    with database_errors("read"):
        return policy_rows().get_or_create(pk=1, defaults=start)[0]


def invalidate() -> None:
    """Read the policy again at the next use."""
    reader.invalidate()


_seen: tuple[object, float] = (None, 0.0)


def first_seen(row: LockPolicy) -> float:
    """Return the time after this process first read the switch of `row` in its state.

    Not `changed_at`, which was taken on the clock of another machine and before the COMMIT.
    """
    global _seen
    state, now = (row.epoch, row.changed_at, row.still_held), clock()
    if _seen[0] != state:
        _seen = state, now
    return _seen[1]
