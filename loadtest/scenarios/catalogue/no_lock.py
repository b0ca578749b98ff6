"""The race without a lock, and with a lock that other processes do not see."""

from functools import partial
from typing import Any

from django.utils.translation import gettext_lazy as _
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
    title=_("Two buyers, one unit, no lock"),
    broken=gettext_noop("no lock + naive"),
    repaired="redis + naive",
    story=_(
        "Buyer A had read the stock, %(b_stock)d unit, and buyer B read it before A wrote.\n"
        "Both wrote what they had computed: %(b_sold)d sold of %(b_stock)d.\n"
        "With a lock in Redis, B waited %(r_second_waited)s, until A had written. It then read "
        "0 and was told “sold out”: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("A lock: B cannot read while A holds it."),
    immune=_("Every lock that all machines share."),
)(partial(_race, "none.NoneBackend"))

scenario(
    name="lock-of-one-process",
    fault="race",
    row="L2",
    title=_("A lock inside one process, and two processes"),
    broken="process + naive",
    repaired="redis + naive",
    story=_(
        "Buyers A and B were served by two processes, and each process granted its own lock.\n"
        "Both wrote what they had computed: %(b_sold)d sold of %(b_stock)d.\n"
        "With a lock in Redis, B waited %(r_second_waited)s, until A had written. It then read "
        "0 and was told “sold out”: %(r_sold)d sold of %(r_stock)d."
    ),
    repair=_("A lock in a store that every process and machine asks."),
    immune=_("Every lock except the process lock."),
)(partial(_race, "process.ProcessBackend"))
