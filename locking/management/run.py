"""Run a program under a lock: what `manage.py locks run NAME -- COMMAND` does.

Without a named backend the lock is the database's own, held by a connection of this process: an
advisory lock of a PostgreSQL transaction, which works behind a pooler, or MySQL's GET_LOCK. Neither
needs a table, so several machines may run the first `migrate`.
"""

import logging
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from django.db import DEFAULT_DB_ALIAS, connections

from locking.backends.database.pool import SessionPool
from locking.backends.database.session import ConnectionLost
from locking.backends.database.sql import digest
from locking.backends.mysql_session import GALERA
from locking.exceptions import LockError, LockLost, LockMisuse, LockTimeout
from locking.handler import locks
from locking.policy.lock import PolicyLock

logger = logging.getLogger("locking")

POLL_SECONDS = 0.2
CHECK_SECONDS = 1.0
"""Seconds between two checks that the session of the database's own lock still has it."""
SILENCE_SECONDS = 10.0
"""Seconds without a reply after which that lock counts as lost."""
GRACE_SECONDS = 10.0
"""Seconds from SIGTERM to SIGKILL for a program whose lock was lost."""
LONG_SECONDS = 600.0
"""Seconds after which an open transaction deserves a warning."""
PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
STARTER = Path(__file__).with_name("starter.py")
OWN_LOCKS: dict[str, tuple[Sequence[str], str, str, str]] = {
    "postgresql": (
        ("BEGIN", "SET LOCAL idle_in_transaction_session_timeout = 0"),
        # The lock of earlier releases, which may run at the same time.
        "SELECT pg_try_advisory_xact_lock(('x' || LEFT(%(key)s, 16))::bit(64)::bigint)::int",
        "SELECT 1",  # fails if the transaction has ended
        "ROLLBACK",
    ),
    "mysql": (
        (),
        "SELECT GET_LOCK(%(key)s, 0)",
        "SELECT IS_USED_LOCK(%(key)s) = CONNECTION_ID()",
        "DO RELEASE_LOCK(%(key)s)",
    ),
}
"""By vendor: what precedes an attempt, the attempt, the check of a holder (1: it has it), and what
ends an attempt or a hold: a pooler then has its session again, and the lock is free at once."""


def run(name: str, command: Sequence[str], *, backend: str | None, timeout: float | None) -> int:
    """Run a program under a lock; return its exit code, or 128 plus the signal that ended it.

    Wait for the lock for `timeout` seconds, or forever. Raise LockTimeout, LockUnavailable or
    LockLost; in the last case the program was stopped, or had already ended. It gets SIGTERM,
    SIGINT and SIGHUP of this process, and on Linux it is killed if this process dies.
    """
    is_own = backend is None and connections[DEFAULT_DB_ALIAS].vendor in OWN_LOCKS
    lock = _database_lock(name, timeout) if is_own else _lease(name, backend, timeout)
    with lock as is_held:
        return _supervise(name, command, is_held)


def _supervise(name: str, command: Sequence[str], is_held: Callable[[], bool]) -> int:
    """Run a program in a process group of its own. Raise LockLost if the lock is lost."""
    starter = [sys.executable, "-I", str(STARTER), str(os.getpid()), *command]
    # Only the foreground group may read a terminal: the program would be stopped.
    stdin = None if sys.stdin and not sys.stdin.isatty() else subprocess.DEVNULL
    program = subprocess.Popen(starter, process_group=0, stdin=stdin)

    def stop(number: int, _frame: FrameType | None = None) -> None:
        with suppress(ProcessLookupError):
            os.killpg(program.pid, number)

    before = {number: signal.signal(number, stop) for number in PASSED_ON}
    try:
        while is_held():
            with suppress(subprocess.TimeoutExpired):
                code = program.wait(POLL_SECONDS)
                return code if code >= 0 else 128 - code
        _end(program)
        raise LockLost(f"{name!r} was lost while the program ran.")
    finally:
        if program.poll() is None:
            stop(signal.SIGKILL)
            program.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(program: subprocess.Popen[bytes]) -> None:
    """Return when the program and its children have ended, SIGKILL at the latest."""
    until = time.monotonic() + GRACE_SECONDS
    with suppress(ProcessLookupError):  # none of them is left
        os.killpg(program.pid, signal.SIGTERM)
        while time.monotonic() < until:
            program.poll()  # else it would count until it is waited for
            os.killpg(program.pid, 0)
            time.sleep(POLL_SECONDS / 4)
        os.killpg(program.pid, signal.SIGKILL)


@contextmanager
def _lease(name: str, backend: str | None, timeout: float | None) -> Iterator[Callable[[], bool]]:
    """Hold a lock of LOCKS. The block gets a function that returns whether it is held."""
    make = locks[backend].lock if backend else PolicyLock
    with make(name, timeout=math.inf if timeout is None else timeout) as lease:
        yield lambda: not lease.lost


@contextmanager
def _database_lock(name: str, timeout: float | None) -> Iterator[Callable[[], bool]]:
    """Hold the database's own lock. The block gets a function that returns whether it is held."""
    pool = SessionPool(DEFAULT_DB_ALIAS)
    begin, attempt, check, end = OWN_LOCKS[pool.vendor]
    key = digest(f"run/{pool.database}/{name}")
    deadline = math.inf if timeout is None else time.monotonic() + timeout

    def acquire(session: Any) -> Any:
        if pool.vendor == "mysql" and (session.row(GALERA) or ("", "OFF"))[1] == "ON":
            raise LockMisuse("The nodes of a Galera cluster share no GET_LOCK: name a backend.")
        while True:
            for sql in begin:
                session.rows(sql)
            if session.row(attempt, key=key)[0]:
                return session
            session.rows(end, key=key)
            if time.monotonic() >= deadline:
                raise LockTimeout(f"{name!r} is held by another process.")
            time.sleep(POLL_SECONDS)

    try:
        session = pool.call(acquire)
        session.reply_within = session.response_timeout = SILENCE_SECONDS
        started = checked = time.monotonic()
        may_warn = bool(begin)

        def is_held() -> bool:
            nonlocal checked, may_warn
            if (now := time.monotonic()) - checked < CHECK_SECONDS:
                return True
            checked = now
            if may_warn and now - started > LONG_SECONDS:
                may_warn = False
                logger.warning("Lock %s: a transaction is open for 10 minutes.", name)
            try:
                return bool(session.row(check, key=key)[0])
            except (ConnectionLost, LockError):
                return False

        yield is_held
        if not is_held():
            raise LockLost(f"{name!r} was lost while the program ran.")
        with suppress(ConnectionLost, LockError):
            session.rows(end, key=key)
    finally:
        pool.close()
