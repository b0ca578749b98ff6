"""A session that starts while its server is paused stops, too."""

import socket
from contextlib import suppress

from devservers import HOST, PostgreSql
from devservers.postgresql import HELLO
from devservers.process import is_stopped


class Busy(PostgreSql):
    """Its next session starts just after the sessions were listed."""

    is_due = False
    late: socket.socket | None = None

    def children(self) -> list[int]:
        found = super().children()
        if self.is_due:
            self.is_due = False
            self.late = socket.create_connection((HOST, self.port), timeout=1)
            with suppress(TimeoutError):
                self.late.sendall(HELLO)
                self.late.recv(100)
        return found


def test_session_that_starts_during_a_pause_stops_too() -> None:
    with Busy() as server:
        server.is_due = True
        server.pause()
        assert not server.is_due
        assert all(map(is_stopped, server.working()))
        server.resume()
        assert server.late is not None
        server.late.close()
