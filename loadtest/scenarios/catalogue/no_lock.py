"""The race without a lock, and with a lock that other processes do not see."""

from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import Facts, scenario
from loadtest.scenarios.steps import WORK_SECONDS, buy_while_holder_stalls
from loadtest.scenarios.testbed import BACKENDS, Testbed


@scenario(fault="race", row="L1", broken=gettext_noop("no lock + naive"), repaired="redis + naive")
def no_lock(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let A work between its read and its write while B, in another process, buys or waits."""
    return _race(testbed, is_repaired, "none.NoneBackend")


@scenario(fault="race", row="L2", broken="process + naive", repaired="redis + naive")
def lock_of_one_process(testbed: Testbed, is_repaired: bool) -> Facts:
    """Let them do the same with a lock that each process has for itself."""
    return _race(testbed, is_repaired, "process.ProcessBackend")


def _race(testbed: Testbed, is_repaired: bool, backend: str) -> Facts:
    if is_repaired:
        testbed.use("naive", TTL=30.0)
        return buy_while_holder_stalls(testbed, at_most=WORK_SECONDS)
    testbed.use("naive", backend.partition(".")[0], f"{BACKENDS}.{backend}", LOCATION="")
    return buy_while_holder_stalls(testbed)
