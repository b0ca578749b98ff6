"""`manage.py lab SUBCOMMAND`: the experiments of loadtest/cli/."""

from loadtest import cli
from loadtest.management.experiments import ExperimentCommand


class Command(ExperimentCommand):
    """Run an experiment of the lab."""

    help = (
        "Load tests, failure scenarios and benchmarks. They start their own servers; only "
        "`lab http` sends load to a running shop."
    )
    example = "run --backend none --backend redis"
    cli = cli
