"""A silent Redis is found out once in a process, whichever client asks."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from django.core.cache import caches

from loadtest.faults.injectors import until
from loadtest.faults.proxy import Proxy
from locking.backends.circuit_breaker import Silence
from locking.backends.redis.connection import Disconnected, OnceMore, Wire, WirePool, redis_silence
from locking.handler import create

TIMEOUT = 0.3


@pytest.fixture
def way(redis_server) -> Iterator[Proxy]:
    with Proxy(redis_server.port) as way:
        yield way


@pytest.fixture
def wires(way: Proxy) -> Iterator[WirePool]:
    pool = WirePool(f"redis://{way.url}/0", timeout=TIMEOUT, connect_timeout=TIMEOUT)
    yield pool
    pool.close()


@pytest.fixture
def client(way: Proxy) -> Iterator[redis.Redis]:
    url = f"redis://{way.url}/0"
    with redis.Redis.from_url(url, socket_timeout=TIMEOUT, retry=OnceMore(url)) as client:
        client.ping()
        yield client


def refused_after(call: Callable[[], object]) -> float:
    began = time.monotonic()
    with pytest.raises((Disconnected, redis.ConnectionError, redis.TimeoutError)):
        call()
    return time.monotonic() - began


def ping(wires: WirePool) -> None:
    wire = wires.take() or wires.open()
    wire.command("PING")
    wires.give(wire)


@pytest.mark.parametrize("first", ["wire", "redis-py"])
def test_one_finds_out_for_all(first, way, wires, client) -> None:
    ping(wires)
    asks = [lambda: ping(wires), client.ping]
    if first == "redis-py":
        asks.reverse()
    plain = Wire(wires.url, timeout=TIMEOUT, connect_timeout=TIMEOUT)
    way.hold()
    assert refused_after(asks[0]) >= TIMEOUT, "nobody lost anything"
    for ask in asks:
        assert refused_after(ask) < TIMEOUT, "it waited again"
    assert refused_after(lambda: plain.command("PING")) >= TIMEOUT, "who does not share it waits"
    way.cut()
    way.flow()
    until(lambda: not redis_silence(wires.url).is_on)
    for ask in asks:
        ask()


def test_a_server_that_refuses_is_not_silent(way, wires, client) -> None:
    ping(wires)
    way.cut(refuse=True)
    for ask in (lambda: ping(wires), client.ping):
        refused_after(ask)
    assert not redis_silence(wires.url).is_on
    way.serve()
    ping(wires)


def test_it_ends_when_an_answer_is_heard_and_not_before() -> None:
    asked = []

    def hear() -> None:
        asked.append(1)
        if len(asked) < 3:
            raise TimeoutError

    silence = Silence("the test's server", hear)
    silence.begin()
    silence.begin()
    assert silence.is_on
    until(lambda: not silence.is_on)
    assert len(asked) == 3, "each beginning listened for itself"


def test_a_beginning_that_is_interrupted_silences_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def strike(*args: object) -> None:
        raise KeyboardInterrupt

    silence = Silence("the test's server", lambda: None)
    with monkeypatch.context() as struck:
        struck.setattr("locking.backends.circuit_breaker.logger.warning", strike)
        with pytest.raises(KeyboardInterrupt):
            silence.begin()
    assert not silence.is_on, "nobody would ever end it"


@pytest.mark.parametrize("client", ["lock", "cache"])
def test_nothing_is_waited_for_before_the_first_command(
    client, way, redis_server, settings
) -> None:
    """While no answer comes through, not even to a greeting, the command has been carried out."""
    near, far = (
        create(
            "any",
            {
                "BACKEND": "locking.backends.redis.RedisBackend",
                "LOCATION": f"redis://127.0.0.1:{port}/0",
                "OPTIONS": {"SOCKET_TIMEOUT": 9.0},
            },
        )
        for port in (redis_server.port, way.port)
    )
    ours = settings.CACHES["default"]
    options = {**ours["OPTIONS"], "socket_timeout": 9.0}
    settings.CACHES = {"far": {**ours, "LOCATION": f"redis://{way.url}/0", "OPTIONS": options}}

    def ask() -> None:
        if client == "cache":
            caches["far"].set("first", 1)
        else:
            far.lock("first").acquire()
            far.lock("first").release()

    with near.lock("any"):
        pass  # the server knows the scripts
    key = {"lock": "lock:{first}", "cache": "shop:1:first"}[client]
    way.answers.clear()
    with ThreadPoolExecutor(1) as pool, redis.Redis(port=redis_server.port) as direct:
        asked = pool.submit(ask)
        until(lambda: direct.exists(key), "the command")
        assert not asked.done()
        way.flow()
        asked.result(9)
    for backend in (near, far):
        backend.close()
