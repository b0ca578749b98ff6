"""`manage.py verify SUBCOMMAND`: the searches of verification/cli/."""

from loadtest.management.experiments import ExperimentCommand
from verification import cli


class Command(ExperimentCommand):
    """Run a search for a broken promise."""

    help = (
        "Searches for broken promises: random faults, every order of small programs, every state "
        "of a model, recorded histories, hours of mixed load. They start their own servers."
    )
    example = "torture --minutes 10"
    cli = cli
