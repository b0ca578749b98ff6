"""The race without a lock, and with a lock that other processes do not see."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import scenario
from loadtest.scenarios.steps import WORK_SECONDS, buy_while_holder_stalls
from loadtest.scenarios.testbed import BACKENDS, Testbed


def _race(backend: str, testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Let A work between its read and its write while B, in another process, buys or waits."""
    if is_repaired:
        testbed.use("naive", TTL=30.0)
        return buy_while_holder_stalls(testbed, at_most=WORK_SECONDS)
    testbed.use("naive", backend.partition(".")[0], f"{BACKENDS}.{backend}", LOCATION="")
    return buy_while_holder_stalls(testbed)


scenario(
    name="no-lock",
    fault="race",
    row="L1",
    broken=gettext_noop("no lock + naive"),
    repaired="redis + naive",
)(partial(_race, "none.NoneBackend"))

scenario(
    name="lock-of-one-process",
    fault="race",
    row="L2",
    broken="process + naive",
    repaired="redis + naive",
)(partial(_race, "process.ProcessBackend"))
