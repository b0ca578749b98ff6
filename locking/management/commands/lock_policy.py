"""`manage.py lock_policy show | switch BACKEND | cancel | history`: which lock is in force."""

import getpass
from argparse import ArgumentParser

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from locking import policy
from locking.exceptions import LockError
from locking.models import LockPolicy, LockPolicyChange, WriteStrategy


class Command(BaseCommand):
    """Reads and switches the policy; exit code 1 when that cannot be done."""

    help = "Show, switch or cancel the switch of the lock in force, or list past switches."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One of four words."""
        words = parser.add_subparsers(dest="word", required=True)
        words.add_parser("show", help="what is in force now")
        switch = words.add_parser("switch", help="put another backend in force")
        switch.add_argument("backend", help="an alias of settings.LOCKS")
        switch.add_argument(
            "--strategy",
            "--discipline",
            choices=WriteStrategy.values,
            help="how stock is written; unchanged if absent",
        )
        switch.add_argument("--reason", default="", help="for the history")
        switch.add_argument(
            "--force",
            action="store_true",
            help="do not wait for the old holders: for an old backend that is dead",
        )
        words.add_parser("cancel", help="stop the switch under way, stay with the old backend")
        history = words.add_parser("history", help="past switches, newest first")
        history.add_argument("--limit", type=int, default=20, help="how many")

    def handle(self, *, word: str, **options: object) -> None:
        """Do what the word says."""
        try:
            getattr(self, f"_{word}")(**options)
        except LockError as error:
            raise CommandError(str(error)) from error

    def _show(self, **options: object) -> None:
        now = policy.current(max_age=0)
        self.stdout.write(f"{now.backend} + {now.strategy}, epoch {now.epoch}")
        if now.draining:
            row = LockPolicy.objects.get()
            self.stdout.write(f"draining for {row.next_backend} + {row.next_strategy}")
        if not now.is_safe:
            self.stdout.write(self.style.WARNING("The shop can oversell under this policy."))

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
            raise CommandError(f"Somebody else came between. In force: {row}.")
        self._show()

    def _cancel(self, **options: object) -> None:
        if not policy.cancel_switch():
            raise CommandError("No switch is under way.")
        self._show()

    def _history(self, *, limit: int, **options: object) -> None:
        for change in LockPolicyChange.objects.all()[: max(0, limit)]:
            how = "forced" if change.forced else f"drained in {change.drained_ms} ms"
            self.stdout.write(
                f"{timezone.localtime(change.changed_at):%Y-%m-%d %H:%M:%S}  "
                f"epoch {change.epoch}: {change.from_backend} + {change.from_strategy} -> "
                f"{change.to_backend} + {change.to_strategy}, {how}, "
                f"by {change.changed_by or 'nobody named'}: {change.reason or 'no reason given'}"
            )
