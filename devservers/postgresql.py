"""A private PostgreSQL."""

import contextlib
import os
import shutil
import signal
import struct
from importlib import import_module
from importlib.util import find_spec

from .base import HOST, Server
from .faults.waiting import until
from .process import is_stopped, process_state
from .programs import ServerError, required

USER = "postgres"
# The start of a session: protocol 3.0, then pairs of names and values.
_PARAMETERS = b"user\0postgres\0database\0shop\0\0"
HELLO = struct.pack("!ii", 8 + len(_PARAMETERS), 196608) + _PARAMETERS


class PostgreSql(Server):
    """PostgreSQL with an empty database `shop`: UTF-8, durable as shipped.

    It refuses to run as root; started by root, it runs as the user `postgres` of Debian's package.
    """

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@{HOST}:{self.port}/shop"

    def prepare(self) -> None:
        if find_spec("psycopg") is None:
            raise ServerError("psycopg is not installed: pip install 'psycopg[binary]>=3.3'")
        required("initdb")
        if os.geteuid() == 0:
            self.folder.chmod(0o711)
            shutil.chown(self.data, USER, USER)
        self.initialize()

    def initialize(self) -> None:
        """Write the data directory."""
        create = [*unprivileged(), required("initdb"), "-D", str(self.data)]
        options = [f"--username={USER}", "--auth=trust", "--encoding=UTF8"]
        self.run_program([*create, *options, "--no-locale", "--no-sync"])
        single = [*unprivileged(), required("postgres"), "--single", "-D", str(self.data), USER]
        self.run_program(single, "CREATE DATABASE shop\n")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "max_connections": 400,
            "recovery_init_sync_method": "syncfs",  # else a restart syncs a thousand files
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        server = [*unprivileged(), required("postgres"), "-D", str(self.data)]
        return [*server, *options, *self.config]

    def is_ready(self) -> bool:
        return self.send(HELLO).startswith(b"R")

    def execute(self, *statements: str) -> None:
        driver = import_module("psycopg")
        try:
            with driver.connect(self.url, autocommit=True) as connection:
                for statement in statements:
                    connection.execute(statement)
        except driver.Error as error:
            raise ServerError(str(error)) from error

    def kill(self) -> None:
        """Inject a crash of the server and the processes of its sessions."""
        self._signal(signal.SIGSTOP)
        sessions = self.children()
        super().kill()
        # A new server refuses the data directory until the last of them has ended.
        until(lambda: {process_state(pid) for pid in sessions} <= {"", "Z"}, "their end")

    def working(self) -> list[int]:
        """Return the postmaster and the processes of its sessions.

        Without those that have ended: a stopped postmaster does not wait for them.
        """
        return [self.pid, *(pid for pid in self.children() if process_state(pid) not in ("", "Z"))]

    def _signal(self, number: signal.Signals) -> None:
        everyone = (signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT)
        if number == signal.SIGSTOP and self.is_running:  # then it starts no further session
            super()._signal(number)
            until(lambda: not self.is_running or is_stopped(self.pid), "the stop")
        sessions = self.children() if self.is_running and number in everyone else []
        # SIGTERM would wait until all clients have disconnected.
        super()._signal(signal.SIGINT if number == signal.SIGTERM else number)
        for pid in sessions:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def unprivileged() -> list[str]:
    """Return the command that a process of root runs the server with, as Debian's user."""
    if os.geteuid():
        return []
    # A change of the user resets the signal that ends the server with its parent: set it again.
    user = [f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    return [required("setpriv"), *user, "--pdeathsig=KILL", "--"]
