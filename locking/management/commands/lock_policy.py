"""`manage.py lock_policy show | switch BACKEND | cancel | history`: the active lock."""

import getpass
from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from locking import policy
from locking.exceptions import LockError
from locking.models import LockPolicyChange, WriteStrategy


class Command(BaseCommand):
    """Show or switch the lock policy; the exit code is 1 if that fails."""

    help = "Show or switch the active lock backend, cancel a switch, or list past switches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add one subcommand per action."""
        actions = parser.add_subparsers(dest="action", required=True)
        actions.add_parser("show", help="show the active backend and strategy")
        switch = actions.add_parser("switch", help="activate another backend")
        switch.add_argument("backend", help="an alias of settings.LOCKS")
        switch.add_argument(
            "--strategy",
            "--discipline",
            choices=WriteStrategy.values,
            help="how stock is written; unchanged if absent",
        )
        switch.add_argument("--reason", default="", help="kept in the history")
        switch.add_argument(
            "--force",
            action="store_true",
            help="do not wait for holders, because the old backend is unavailable",
        )
        actions.add_parser("cancel", help="cancel the switch in progress and keep the old backend")
        history = actions.add_parser("history", help="list past switches, newest first")
        history.add_argument(
            "--limit", type=int, default=20, help="number of switches (default: 20)"
        )

    def handle(self, *, action: str, **options: object) -> None:
        """Run the subcommand."""
        try:
            getattr(self, f"_{action}")(**options)
        except LockError as error:
            raise CommandError(str(error)) from error

    def _show(self, **options: object) -> None:
        now = policy.current(max_age=0)
        self.stdout.write(f"{now.backend} + {now.strategy}, epoch {now.epoch}")
        if now.draining:
            row = policy.stored_policy()
            self.stdout.write(f"switching to {row.next_backend} + {row.next_strategy}")
        if not now.is_safe:
            self.stdout.write(
                self.style.WARNING(
                    "Warning: the shop can oversell with this policy: naive writes need a lock "
                    "that never fails. Switch to conditional or fenced."
                )
            )

    def _switch(
        self, *, backend: str, strategy: str | None, reason: str, force: bool, **options: object
    ) -> None:
        row = policy.switch(
            backend=backend,
            strategy=strategy,
            changed_by=getpass.getuser(),
            reason=reason,
            force=force,
        )
        if row.backend != backend or row.strategy != (strategy or row.strategy):
            raise CommandError(f"Another switch was completed meanwhile. Active: {row}.")
        self._show()

    def _cancel(self, **options: object) -> None:
        if not policy.cancel_switch():
            raise CommandError("No switch is in progress.")
        self._show()

    def _history(self, *, limit: int, **options: object) -> None:
        for change in LockPolicyChange.objects.all()[: max(0, limit)]:
            how = "forced" if change.forced else f"drained in {change.drained_ms} ms"
            self.stdout.write(
                f"{timezone.localtime(change.changed_at):%Y-%m-%d %H:%M:%S}  "
                f"epoch {change.epoch}: {change.from_backend} + {change.from_strategy} -> "
                f"{change.to_backend} + {change.to_strategy}, {how}, "
                f"by {change.changed_by or 'unknown user'}: {change.reason or 'no reason given'}"
            )
