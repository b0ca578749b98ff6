"""gunicorn as deployed: one message for a response, and counts that outlive their workers."""

import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from prometheus_client import Counter

from devservers import HOST
from loadtest.bench.purchase.web import CONFIG, WebServer
from locking.metrics import registry

PATH = ["--pythonpath", str(CONFIG.parents[1])]
ASKED = Counter("asked", "Requests")
REQUEST = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
DATA_SEGMENTS_IN = 152
"""Offset of tcpi_data_segs_in in struct tcp_info of linux/tcp.h."""


def application(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Counts itself; says who answers and what all have counted."""
    ASKED.inc()
    body = f"{os.getpid()} {registry().get_sample_value('asked_total')}".encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]


class ShortLived(WebServer):
    """Two workers, each of them replaced after three answers."""

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "gunicorn", "tests.shop.platform.test_metrics:application"]
        command += ["--config", str(CONFIG), "--bind", f"{HOST}:{self.port}", "--workers", "2"]
        return [*command, "--max-requests", "3", "--max-requests-jitter", "0", *PATH]

    def is_ready(self) -> bool:
        return bool(self.ask_who())

    def hang_up(self) -> None:
        """It reads its settings again."""
        self._signal(signal.SIGHUP)

    def ask_who(self) -> list[str]:
        """Return the process that answered and the count; nothing from one that has ended."""
        received = b""
        with (
            suppress(OSError),
            socket.create_connection((HOST, self.port), timeout=5) as connection,
        ):
            connection.sendall(REQUEST)
            while data := connection.recv(65536):
                received += data
            size = DATA_SEGMENTS_IN + 4
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, size)
        if not received:
            return []
        (segments,) = struct.unpack_from("=I", info, DATA_SEGMENTS_IN)
        assert segments == 1, "headers and body were two messages"
        return received.partition(b"\r\n\r\n")[2].decode().split()


def test_counters_survive_worker_replacement(monkeypatch, tmp_path) -> None:
    """What was counted stays so, and there are no more files than places."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    seen, last = set(), 0.0
    with ShortLived(2) as web:
        deadline = time.monotonic() + 240
        while len(seen) < 9 and time.monotonic() < deadline:
            if answer := web.ask_who():
                if len(seen) == 3 and answer[0] not in seen:
                    web.hang_up()  # once
                seen.add(answer[0])
                assert float(answer[1]) > last
                last = float(answer[1])
    assert len(seen) >= 9
    # The parent's own, those of two places, and of two more while HUP replaces both workers.
    assert len(list(tmp_path.glob("counter_*.db"))) <= 5
