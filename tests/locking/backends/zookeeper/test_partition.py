"""A lease at servers that are cut off from the others ends before these grant it again."""

import time
from contextlib import ExitStack, closing

import pytest

from devservers import start_all
from devservers.faults.ensemble import Partitioned, leader
from devservers.faults.waiting import WAIT_TIMEOUT
from tests.locking.backends.zookeeper.zookeeper_tools import connected, name
from tests.locking.calls import acquired, store_of

__all__ = ["name"]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_lease_at_the_smaller_part_ends_in_time(role: str, name: str) -> None:
    """The server replies for some ticks, while the other part already ends the session.

    This leader takes 40 ticks to notice: the others' successor is elected long before.
    """
    ensemble = Partitioned()
    second, first, last = ensemble.nodes
    last.settings[last.settings.index("syncLimit=5")] = "syncLimit=40"
    with ExitStack() as stack:
        stack.callback(ensemble.stop)
        start_all([first, last])  # the higher number wins, and the third follows
        start_all([second])
        assert leader(ensemble.nodes) is last
        cut, whole = (last, first) if role == "leader" else (first, last)
        holder = stack.enter_context(closing(connected(cut.url, SESSION_TIMEOUT=1.0)))
        other = stack.enter_context(closing(connected(whole.url)))
        lease = acquired(store_of(holder).lock(name), timeout=WAIT_TIMEOUT)
        ensemble.cut_off(cut)
        with store_of(other).lock(name, timeout=WAIT_TIMEOUT):
            granted = time.monotonic()
            assert lease.deadline <= granted
