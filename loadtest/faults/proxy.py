"""A proxy that stands between two ends of a TCP connection, and loses, delays or cuts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from devservers import HOST


class Proxy:
    """Forwards connections to a port; each direction can be held up, and all of it be cut.

    What is held up arrives once it flows again, as on a network that loses packets for a while;
    what is cut does not.
    """

    def __init__(
        self,
        port: int,
        *,
        listen: tuple[str, int] = (HOST, 0),
        rewrite: tuple[bytes, bytes] = (b"", b""),
    ) -> None:
        self._target, self._rewrite = port, rewrite
        self.requests, self.answers = threading.Event(), threading.Event()
        self.delay = 0.0
        """Seconds that each message takes longer."""
        self.losing = 0.0
        """How many of the answers to come are lost, each with its connection."""
        self.asked = 0
        """How many requests came; what comes together counts once."""
        self.flow()
        self._open: list[socket.socket] = []
        self._refusing = False
        self._listener = socket.create_server(listen)
        self.port: int = self._listener.getsockname()[1]
        self.url = f"{listen[0]}:{self.port}"
        self._start(self._accept)

    def hold(self) -> None:
        """Lose what is sent, both ways."""
        self.requests.clear()
        self.answers.clear()

    def hold_open_ones(self) -> threading.Event:
        """Hold requests on the connections there are, not on new ones; the event lets them go."""
        held, self.requests = self.requests, threading.Event()
        self.requests.set()
        held.clear()
        return held

    def flow(self) -> None:
        self.requests.set()
        self.answers.set()

    def cut(self, *, refuse: bool = False) -> None:
        """Reset the connections, with what was on its way; `refuse` new ones until `serve`."""
        self._refusing = refuse
        opened, self._open = self._open, []
        for end in opened:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def lead_to(self, port: int) -> None:
        """From now on this address is another server's; the connections to the first are cut."""
        self._target = port
        self.cut()

    def serve(self) -> None:
        self._refusing = False
        self.flow()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self.flow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _start(self, run: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, daemon=True)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._refusing:
                near.close()
            else:
                self._start(self._join, near)

    def _join(self, near: socket.socket) -> None:
        """Be refused no sooner than the client would be that dials again for a while."""
        deadline = time.monotonic() + 2
        while True:
            try:
                far = socket.create_connection((HOST, self._target))
                break
            except OSError:
                if time.monotonic() > deadline:
                    near.close()
                    return
                time.sleep(0.02)
        self._open += [near, far]
        back = self._start(self._pump, near, far, self.requests)
        self._pump(far, near, self.answers)
        back.join()
        for end in (near, far):
            end.close()

    def _pump(self, source: socket.socket, sink: socket.socket, gate: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.asked += gate is not self.answers
                gate.wait()
                if gate is self.answers and self.losing:
                    self.losing -= 1
                    break
                time.sleep(self.delay)
                sink.sendall(data.replace(*self._rewrite) if self._rewrite[0] else data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
