"""Run one experiment of `lab endure`, {"what", "ports", ...}, and report its verdict.

The stores belong to the parent process: it injects a fault into them for each "fault" event.
"""

from typing import Any

from devservers.faults.worker import emit
from loadtest.resilience.recovery import recovery
from loadtest.resilience.restarts import restarts
from loadtest.resilience.slow import slow
from loadtest.resilience.soak import soak

EXPERIMENTS = {"recovery": recovery, "slow": slow, "restarts": restarts, "soak": soak}


def main(asked: dict[str, Any]) -> None:
    """Run the experiment and send its report."""
    report = EXPERIMENTS[asked["what"]](asked)
    emit("report", report={"what": asked["what"], **report})
