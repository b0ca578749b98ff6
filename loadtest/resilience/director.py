"""`lab endure`: recovery, slow stores, restarts and a soak, each with its verdict.

Asked with {"what", "ports", ...}; the parent kills the stores and holds up what goes to them when
it hears "strike", for this process may not own them.
"""

from typing import Any

from loadtest.load.events import say
from loadtest.resilience.recovery import recovery
from loadtest.resilience.restarts import restarts
from loadtest.resilience.slow import slow
from loadtest.resilience.soak import soak

WHAT = {"recovery": recovery, "slow": slow, "restarts": restarts, "soak": soak}


def main(asked: dict[str, Any]) -> None:
    """Do what is asked, and report."""
    report = WHAT[asked["what"]](asked)
    say("report", report={"what": asked["what"], **report})
