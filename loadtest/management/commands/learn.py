"""`manage.py learn export DIR | record`: the course as files, and the recording of its game."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import CommandError

from inventory.management.console import HelpfulCommand, add_subcommands
from loadtest.game.record import record
from loadtest.kernel.session import ExperimentFailed
from loadtest.web.static_site import export


class Command(HelpfulCommand):
    """Export the course, or record its game."""

    help = "Write the course and its game as a static site, which needs no server."
    example = "export site"
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the subcommands."""
        actions = add_subcommands(parser)
        text = "write the course, its recordings and its game as a static site"
        exported = actions.add_parser("export", help=text, description=text)
        exported.add_argument("folder", type=Path, metavar="DIR", help="new, empty or an export")
        text = "play all moves of the game on real servers, for its page; takes 15 minutes"
        actions.add_parser("record", help=text, description=text)

    def handle(self, *, action: str, folder: Path = Path(), **_: object) -> None:
        """Export or record, and print what was written."""
        try:
            if action == "export":
                size = export(folder) / 2**20
                self.stdout.write(f"{folder / 'index.html'} and all it needs: {size:.1f} MB.")
            else:
                for line in record():
                    self.stdout.write(line)
        except (OSError, ExperimentFailed) as error:
            raise CommandError(str(error)) from error
