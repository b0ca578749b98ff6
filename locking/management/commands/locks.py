"""`manage.py locks`: list held locks, break one, or run a program under one."""

import sys
from argparse import PARSER, ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from locking import policy
from locking.claims import Held
from locking.exceptions import LockError, LockLost, LockTimeout, LockUnavailable
from locking.handler import locks
from locking.management.base import LockCommand
from locking.management.run import run
from locking.names import check_name, check_timeout

HELD, UNAVAILABLE, LOST = 75, 69, 79
EXIT_CODES: dict[type[LockError], int] = {
    LockTimeout: HELD,
    LockUnavailable: UNAVAILABLE,
    LockLost: LOST,
}
"""Of `run`; all others are the program's. The first two have these numbers in sysexits.h."""
COLUMNS = ("name", "owner", "token", "time left", "count", "waiters")


class Command(LockCommand):
    """List the held locks of a backend, break one whose name is given twice, or run a program."""

    requires_system_checks = ()  # before `run` starts the program that repairs what they find
    help = "List the locks that are held now, break one of them, or run a program under one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", help="lock backend (default: the active one)")
        parser.add_argument("--break", dest="name", help="take this lock from its holder")
        parser.add_argument("--yes-break", dest="again", help="confirm the lock name")
        actions = parser.add_subparsers(dest="action", metavar="run")
        running = actions.add_parser(
            "run",
            usage="manage.py locks run NAME [--backend NAME]\n"
            "           [--timeout S | --skip-if-held] -- COMMAND",
            help="run a program while this process holds a lock",
            description="Run a program while this process holds a lock. Exit codes: the program's; "
            f"{HELD} the lock stayed held, {UNAVAILABLE} its server did not reply, {LOST} it was "
            "lost and the program stopped.",
            epilog="Example: manage.py locks run report -- ./report.sh --daily",
        )
        running.add_argument("lock", metavar="NAME", help="name of the lock")
        running.add_argument(
            "--backend",
            dest="run_backend",
            help="lock backend (default: the database's own lock, which needs no tables)",
        )
        wait = running.add_mutually_exclusive_group()
        wait.add_argument("--timeout", type=float, help="seconds to wait (default: forever)")
        wait.add_argument(
            "--skip-if-held",
            action="store_true",
            help="end at once with success if another process holds the lock",
        )
        running.add_argument(
            "command", nargs=PARSER, metavar="COMMAND", help="program and its options"
        )

    def handle(
        self,
        *,
        action: str | None,
        backend: str | None,
        name: str | None,
        again: str | None,
        **options: Any,
    ) -> None:
        """List the locks, break one or run a program."""
        if action == "run":
            sys.exit(self._run(**options))
        alias = backend or policy.current().backend
        if name is None and again is None:
            self._list(alias)
        else:
            self._break(alias, name, again)

    def _list(self, alias: str) -> None:
        if held := sorted(locks[alias].inspect(), key=lambda each: each.name):
            self.print_table(COLUMNS, map(_cells, held))
        else:
            self.stdout.write(f"No locks are held in {alias}.")
        if not locks[alias].capabilities.lists_holders:
            self.stdout.write(f"Locks that other processes hold in {alias} can't be listed.")

    def _run(
        self,
        *,
        lock: str,
        command: list[str],
        run_backend: str | None,
        timeout: float | None,
        skip_if_held: bool,
        **options: object,
    ) -> int:
        check_name(lock)
        check_timeout(timeout)
        wait = 0.0 if skip_if_held else timeout
        command = command[1:] if command[0] == "--" else command
        try:
            return run(lock, command, backend=run_backend, timeout=wait)
        except tuple(EXIT_CODES) as error:
            self.stderr.write(str(error))
            if skip_if_held and isinstance(error, LockTimeout):
                return 0
            return next(code for kind, code in EXIT_CODES.items() if isinstance(error, kind))

    def _break(self, alias: str, name: str | None, again: str | None) -> None:
        if name is None or name != again:
            raise CommandError(
                "The holder of a broken lock keeps working, at the same time as the next holder. "
                "To confirm, repeat the name: --break NAME --yes-break NAME."
            )
        if not locks[alias].break_lock(name):
            raise CommandError(f"Lock {name!r} is not held in {alias}.")
        self.stdout.write(f"Lock {name!r} broken.")


def _cells(held: Held) -> tuple[str, ...]:
    left = None if held.expires_in is None else f"{held.expires_in:.1f} s"
    cells = (held.name, held.owner, held.token, left, held.count, held.waiters)
    return tuple("" if cell is None else str(cell) for cell in cells)
