"""The textbook locks of Redis as controls; their flaws are scenarios of the lab."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from devservers import Redis
from devservers.faults.waiting import WAIT_TIMEOUT, until
from loadtest.recipes.redis_textbook import SetnxBackend
from tests.locking.calls import store_of


@pytest.mark.faults(row=23, backend="recipe SETNX", fired="8 pollers")
def test_row_23_pollers_overtake_each_other(redis_server: Redis) -> None:
    """The control for the queues."""
    backend = SetnxBackend("polling", location=redis_server.url)
    asked: list[int] = []
    served: list[int] = []

    def work(number: int) -> None:
        asked.append(number)
        with store_of(backend).lock("n", timeout=WAIT_TIMEOUT):
            served.append(number)

    with ThreadPoolExecutor(8) as pool:
        with store_of(backend).lock("n", timeout=5):
            done = [pool.submit(work, number) for number in range(8)]
            until(lambda: len(asked) == 8, "all asking")
        for one in done:
            one.result(WAIT_TIMEOUT)
    backend.close()
    assert sorted(served) == sorted(asked)
    assert served != asked
