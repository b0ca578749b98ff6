"""What deploy/gunicorn_conf.py adds to gunicorn, on a real server."""

import signal
import socket
import struct
from pathlib import Path
from typing import Any

from devservers import HOST
from devservers.faults.waiting import until
from loadtest.bench.purchase.web import WebServer

ROOT = Path(__file__).resolve().parents[3]
DATA_SEGMENTS_IN = 152
"""Offset of tcpi_data_segs_in in struct tcp_info of linux/tcp.h."""


def ask(port: int, request: bytes) -> tuple[bytes, int]:
    """Return the response, and the number of TCP segments that it came in."""
    received = b""
    with socket.create_connection((HOST, port), timeout=20) as connection:
        connection.sendall(request + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        while data := connection.recv(65536):
            received += data
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, DATA_SEGMENTS_IN + 4)
    return received, struct.unpack_from("=I", info, DATA_SEGMENTS_IN)[0]


def test_response_is_sent_in_one_message(monkeypatch: Any) -> None:
    """Before, headers and body were two messages. The same after HUP has read the file again."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with WebServer(1) as web:
        check_segments(web.port)
        before = web.children()
        web._signal(signal.SIGHUP)
        until(lambda: set(web.children()) - set(before), "a new worker")
        until(lambda: not set(web.children()) & set(before), "the end of the old one")
        check_segments(web.port)


def check_segments(port: int) -> None:
    response, segments = ask(port, b"GET /livez")
    assert (response[-7:], segments) == (b"\r\n\r\nok\n", 1)
    response, segments = ask(port, b"HEAD /livez")
    assert (response[-4:], segments) == (b"\r\n\r\n", 1)
