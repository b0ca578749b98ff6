"""The proxy delivers what it held, also after the client has closed its connection."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as client

from devservers import HOST, Redis
from devservers.base import injected_faults
from devservers.faults.clock import Clock
from devservers.faults.injectors import ClockJump, Disturb
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import until
from tests.devservers.faults.interception import InterceptingProxy

REQUEST = b"SET k v\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[Redis]:
    with Redis() as server:
        yield server


@pytest.fixture
def direct(server: Redis) -> Iterator[client.Redis]:
    """Return a connection to the server that does not pass through the proxy."""
    with client.Redis.from_url(server.url) as direct:
        direct.flushall()
        yield direct


@pytest.fixture
def proxy(server: Redis) -> Iterator[InterceptingProxy]:
    with InterceptingProxy(server.port) as proxy:
        yield proxy


def open_connection(proxy: InterceptingProxy) -> socket.socket:
    connection = socket.create_connection((HOST, proxy.port))
    connection.sendall(b"PING\r\n")
    assert connection.recv(100) == b"+PONG\r\n"
    return connection


def reset(connection: socket.socket) -> None:
    """Close the connection so that its peer loses what it has not read yet."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def test_held_request_arrives_after_its_client_has_gone(
    proxy: InterceptingProxy, direct: client.Redis
) -> None:
    connection = open_connection(proxy)
    held = proxy.hold_request(containing=b"SET k")
    connection.sendall(REQUEST)
    assert held.is_held.wait(20)
    reset(connection)
    with socket.create_connection((HOST, proxy.port)) as other:  # only that request is held
        other.sendall(b"PING\r\n")
        assert other.recv(100) == b"+PONG\r\n"
    assert direct.get("k") is None
    injected_faults.clear()
    assert held.deliver() == len(REQUEST)
    assert injected_faults["Proxy request delivered late"] == 1
    assert until(lambda: direct.get("k"), "the late request") == b"v"


def test_cut_spares_a_client_that_connects_again_meanwhile(
    proxy: InterceptingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is one cut; a second one at once is more than a client has to survive."""

    class Ends(list[socket.socket]):
        def pop(self, *_: object) -> socket.socket:
            self.remove(end := self[-1])
            return end

        def remove(self, end: socket.socket) -> None:
            super().remove(end)
            if not again:
                again.append(open_connection(proxy))

    again: list[socket.socket] = []
    with open_connection(proxy) as first:
        monkeypatch.setattr(proxy, "_open", Ends(vars(proxy)["_open"]))
        proxy.cut()
        assert first.recv(100) == b""
    with again[0] as second:
        second.sendall(b"PING\r\n")
        assert second.recv(100) == b"+PONG\r\n"


def test_delivery_to_a_connection_that_the_server_closed(
    proxy: InterceptingProxy, direct: client.Redis
) -> None:
    connection = open_connection(proxy)
    held = proxy.hold_request(containing=b"SET k")
    connection.sendall(REQUEST)
    assert held.is_held.wait(20)
    direct.client_kill_filter(_type="normal", skipme=True)
    assert connection.recv(100) == b"", "the proxy passes on that the server closed"
    assert held.deliver() == 0
    assert direct.get("k") is None
    connection.close()


def test_held_traffic_arrives_whole_after_its_client_has_gone(
    proxy: InterceptingProxy, direct: client.Redis
) -> None:
    """The request exceeds the buffers of the sockets: the proxy has to read it while it holds."""
    value = b"v" * 16_000_000
    with open_connection(proxy) as connection:
        proxy.hold()
        connection.settimeout(20)
        request = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%s\r\n"
        connection.sendall(request % (len(value), value))
    assert direct.get("k") is None
    proxy.resume()
    assert until(lambda: direct.get("k"), "the late request") == value


def test_lost_reply_is_that_of_the_request(proxy: InterceptingProxy, direct: client.Redis) -> None:
    """Not one to another connection of the client, such as that of a heartbeat."""
    with open_connection(proxy) as waiting, open_connection(proxy) as other:
        proxy.losing = re.compile(b"BLPOP")
        waiting.sendall(b"BLPOP k 0\r\n")
        until(lambda: proxy.losing is None, "the request")
        other.sendall(b"PING\r\n")
        assert other.recv(100) == b"+PONG\r\n"
        direct.rpush("k", "v")
        assert (waiting.recv(100), proxy.lost_replies) == (b"", 1)


def test_fault_of_connections_that_have_ended_hits_nothing(proxy: InterceptingProxy) -> None:
    for _ in range(3):
        open_connection(proxy).close()
    until(lambda: not proxy.connections, "their end")
    cut = Disturb([proxy], "cut")
    assert cut.last(0) == ""
    with open_connection(proxy):
        assert cut.last(0) == "1 connections: cut"


@pytest.mark.parametrize("end", [lambda proxy: proxy.cut(refuse=True), Proxy.close])
def test_connection_under_way_during_a_cut_is_refused(end: Callable[[Proxy], object]) -> None:
    under_way = threading.Event()

    class Watched(Proxy):
        def _join(self, near: socket.socket) -> None:
            under_way.set()
            super()._join(near)

    with Redis() as server, Watched(server.port, connect_timeout=20) as proxy:
        server.kill()
        with socket.create_connection((HOST, proxy.port), timeout=20) as waiting:
            assert under_way.wait(20)
            end(proxy)
            server.start()
            waiting.sendall(b"PING\r\n")
            assert waiting.recv(100) == b""


def test_a_clock_jumps_only_where_it_drives(redis_server: Redis, tmp_path: Path) -> None:
    clock, driven = Clock(tmp_path), Redis()
    clock.drive(driven)
    with driven:
        jump = ClockJump([clock], [driven], 31)
        jump.inject()
        assert jump.injected
        jump.recover()
        elsewhere = ClockJump([clock], [driven, redis_server], 31)
        elsewhere.inject()
        assert not elsewhere.injected
