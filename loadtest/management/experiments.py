"""The base of `manage.py lab` and `manage.py verify`: subcommands that start servers."""

import signal
import sys
from argparse import ArgumentParser
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, NoReturn

from django.core.management.base import CommandError

from inventory.management.console import HelpfulCommand, add_subcommands
from loadtest.kernel.params import PlanError
from loadtest.kernel.session import ExperimentFailed
from loadtest.kernel.terminal import Terminal

INTERRUPTED = 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ExperimentCommand(HelpfulCommand):
    """Run an experiment; when it ends, so have all the processes that it started."""

    cli: ModuleType
    """A package: each module is a subcommand, see `loadtest.cli`."""
    requires_system_checks = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add one subcommand per module of `cli`."""
        actions = add_subcommands(parser)
        for found in iter_modules(self.cli.__path__):
            module, experiment = self._command(found.name)
            about, _, example = (module.__doc__ or "").strip().partition("\n\n")
            usage = f"{parser.prog} {found.name} [--help] ..."
            own = actions.add_parser(
                found.name, help=about, description=about, usage=usage, epilog=example
            )
            experiment.add_arguments(own)
            own.add_argument("--json", action="store_true", help="print one JSON object only")

    def handle(self, *, action: str, json: bool, **options: Any) -> None:
        """Run the subcommand; on one of SIGNALS, stop its processes before exiting."""
        # With nohup, a closed terminal is no reason.
        is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        signals = SIGNALS[:2] if is_ignored else SIGNALS
        before = {signum: signal.signal(signum, _interrupt) for signum in signals}
        try:
            terminal = Terminal(self, as_json=json)
            code = self._command(action)[1].handle(terminal, **options)
        except PlanError as error:
            raise CommandError(str(error), returncode=2) from error
        except ExperimentFailed as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stderr.write("Interrupted: all processes are stopped.")
            code = INTERRUPTED
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
        if code:
            sys.exit(code)

    def _command(self, name: str) -> tuple[ModuleType, Any]:
        """Return the module of a subcommand, and its COMMAND or itself."""
        module = import_module(f"{self.cli.__name__}.{name}")
        return module, getattr(module, "COMMAND", module)


def _interrupt(*_: object) -> NoReturn:
    for signum in SIGNALS:  # a second signal would interrupt the cleanup
        signal.signal(signum, signal.SIG_IGN)
    raise KeyboardInterrupt
