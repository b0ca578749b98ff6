"""The circuit breaker: one thread of a process finds out that a server does not respond."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db.utils import ConnectionHandler

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.backends.circuit_breaker import CircuitBreaker
from locking.backends.database.breaker import breaker_of
from locking.backends.redis.connection import Connection, Disconnected
from locking.backends.redis.pool import ConnectionPool, redis_breaker
from locking.testing.calls import until_available
from tests.devservers.faults.interception import InterceptingProxy

TIMEOUT = 1.0


@pytest.fixture
def proxy(redis_server) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(redis_server.port) as proxy:
        yield proxy


@pytest.fixture
def connections(proxy: InterceptingProxy) -> Iterator[ConnectionPool]:
    pool = ConnectionPool(f"redis://{proxy.url}/0", timeout=TIMEOUT, connect_timeout=TIMEOUT)
    yield pool
    pool.close()


def is_refused(call: Callable[[], object]) -> bool:
    """Return whether a call fails without asking the server."""
    with pytest.raises(Disconnected) as caught:
        call()
    return "an earlier command timed out" in str(caught.value.__cause__)


def ping(pool: ConnectionPool) -> None:
    pool.call(lambda connection: connection.command("PING"))


def test_one_timeout_opens_it(proxy, connections) -> None:
    ping(connections)
    unprotected = Connection(connections.url, timeout=TIMEOUT, connect_timeout=TIMEOUT)
    unprotected_ping = partial(unprotected.command, "PING")
    proxy.hold()
    calls = (partial(ping, connections), partial(ping, connections), unprotected_ping)
    assert [is_refused(call) for call in calls] == [False, True, False]
    proxy.cut()
    proxy.resume()
    until(lambda: not redis_breaker(connections.url).is_open)
    until_available(partial(ping, connections))


def test_a_refused_connection_does_not_open_it(proxy, connections) -> None:
    ping(connections)
    proxy.cut(refuse=True)
    assert not is_refused(partial(ping, connections))
    assert not redis_breaker(connections.url).is_open
    proxy.accept()
    ping(connections)


@pytest.mark.parametrize(("cause", "count"), [(TimeoutError(), 1), (ConnectionResetError(), 2)])
def test_request_is_repeated_unless_it_timed_out(
    cause: OSError, count: int, connections: ConnectionPool
) -> None:
    """A request that timed out may still arrive, after the repeated one."""
    calls = []

    def request(connection: Connection) -> None:
        calls.append(connection)
        raise Disconnected from cause

    with pytest.raises(Disconnected):
        connections.call(request)
    assert len(calls) == count
    for connection in calls:
        connection.close()


def test_each_database_that_the_options_name_has_its_own() -> None:
    """One server that does not respond would stop the others; the control: one host is one."""
    options: list[dict[str, str]] = [{"service": "shop"}, {"service": "reports"}]
    handler = ConnectionHandler(
        {"default": {}}
        | {
            f"{host}{number}": {"ENGINE": "django.db.backends.postgresql"}
            | {"NAME": "shop", "HOST": host, "OPTIONS": option}
            for host in ("", "db")
            for number, option in enumerate(options)
        }
    )
    breakers = {alias: breaker_of(handler[alias]) for alias in ("0", "1", "db0", "db1")}
    assert breakers["0"] is not breakers["1"]
    assert breakers["db0"] is breakers["db1"]


def test_it_closes_with_the_first_successful_probe() -> None:
    probes, may_probe = [], threading.Event()

    def probe() -> None:
        probes.append(may_probe.wait(WAIT_TIMEOUT))
        if len(probes) < 3:
            raise TimeoutError

    breaker = CircuitBreaker("the test's server", probe)
    breaker.open()
    breaker.open()
    assert breaker.is_open
    may_probe.set()
    until(lambda: not breaker.is_open)
    assert len(probes) == 3, "each call of open() started a probing thread"


def test_an_interrupted_open_leaves_it_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    breaker = CircuitBreaker("the test's server", lambda: None)
    with monkeypatch.context() as patch:
        patch.setattr("locking.backends.circuit_breaker.logger.warning", interrupt)
        with pytest.raises(KeyboardInterrupt):
            breaker.open()
    assert not breaker.is_open, "no thread would ever close it"
