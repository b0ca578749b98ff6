"""`manage.py lock_policy show | switch BACKEND | cancel | history`: the active lock."""

import getpass
from argparse import ArgumentParser

from django.core.management.base import CommandError
from django.utils import timezone

from locking import policy
from locking.conf import mode_warning, modes
from locking.jobs.times import aware
from locking.management.base import LockCommand
from locking.models import LockPolicyChange


class Command(LockCommand):
    """Show or switch the lock policy; the exit code is 1 if that fails."""

    help = "Show or switch the active lock backend, cancel a switch, or list past switches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add one subcommand per action."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="SUBCOMMAND")
        actions.add_parser("show", help="show the active backend")
        switch = actions.add_parser("switch", help="activate another backend")
        switch.add_argument("backend", help="name of a lock backend in settings.LOCKS")
        if known := modes().values:
            names = ("--mode", "--strategy", "--discipline")  # the last two are older names
            meaning = f"{', '.join(known)} (default: unchanged)"
            switch.add_argument(*names, choices=known, default="", metavar="MODE", help=meaning)
        switch.add_argument("--reason", default="", help="shown in the history")
        switch.add_argument(
            "--force",
            action="store_true",
            help="do not wait for current holders; only if the old backend is down",
        )
        actions.add_parser("cancel", help="cancel the switch in progress and keep the old backend")
        history = actions.add_parser("history", help="list past switches, newest first")
        history.add_argument(
            "--limit", type=int, default=20, help="number of entries (default: 20)"
        )

    def handle(self, *, action: str, **options: object) -> None:
        """Run the subcommand."""
        getattr(self, f"_{action}")(**options)

    def _show(self, **options: object) -> None:
        row = policy.stored_policy()
        self.stdout.write(str(row))
        if row.next_backend:
            self.stdout.write(f"switching to {row.upcoming}")
        if row.still_held:
            self.stdout.write(f"still held in {row.backend}: {', '.join(row.still_held)}")
        if warning := mode_warning(policy.current(max_age=0).mode):
            self.stdout.write(self.style.WARNING(f"Warning: {warning}"))

    def _switch(
        self, *, backend: str, reason: str, force: bool, mode: str = "", **options: object
    ) -> None:
        row = policy.switch(
            backend=backend,
            mode=mode,
            changed_by=getpass.getuser(),
            reason=reason,
            force=force,
        )
        if row.backend != backend or row.mode != (mode or row.mode):
            raise CommandError(f"The policy was changed by someone else meanwhile. Active: {row}.")
        self._show()

    def _cancel(self, **options: object) -> None:
        if not policy.cancel_switch():
            raise CommandError("No switch is in progress.")
        policy.finish_switch()  # back, if the new backend was in use already
        self._show()

    def _history(self, *, limit: int, **options: object) -> None:
        rows = [
            (
                f"{timezone.localtime(aware(change.changed_at)):%Y-%m-%d %H:%M:%S}",
                str(change.epoch),
                change.old,
                change.new,
                "forced" if change.forced else f"{change.drained_ms} ms",
                change.changed_by,
                change.reason,
            )
            for change in LockPolicyChange.objects.all()[: max(0, limit)]
        ]
        self.print_table(("time", "epoch", "from", "to", "drained in", "by", "reason"), rows)
