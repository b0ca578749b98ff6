"""Faults of databases that only tests inject: a full disk, and a standby that is promoted."""

import subprocess
from pathlib import Path

import psycopg

from devservers import HOST, PostgreSql, Server
from devservers.base import injected_faults
from devservers.faults.waiting import until
from devservers.postgresql import USER, unprivileged
from devservers.programs import required

SHIM = Path(__file__).with_name("fulldisk.c")
RECEIVERS = "SELECT COUNT(*) FROM pg_stat_wal_receiver"
REPLAYED = "SELECT pg_last_wal_replay_lsn() >= %s"


class FullDisk:
    """The disk of a server's data, or of a directory in that, made before the server starts.

    Linux, and programs that write with the C library's write, pwrite, pwritev or posix_fallocate.
    """

    def __init__(self, server: Server, directory: str = "") -> None:
        shim, self._flag = server.folder / "fulldisk.so", server.folder / "disk-is-full"
        options: list[str | Path] = ["-shared", "-fPIC", "-O2", "-o", shim, SHIM, "-ldl"]
        subprocess.run([required("cc"), *options], check=True)
        folder = f"{server.data / directory}/"
        env = {"FULL_DISK_FLAG": str(self._flag), "FULL_DISK_FOLDER": folder}
        server.preload({"LD_PRELOAD": str(shim), **env})

    def fill(self) -> None:
        """Refuse to make files larger from now on."""
        self._flag.touch()
        injected_faults["disk full"] += 1

    def free(self) -> None:
        """Accept it again."""
        self._flag.unlink(missing_ok=True)


class Standby(PostgreSql):
    """A copy of `primary`, which may be read and promoted."""

    def __init__(self, primary: PostgreSql) -> None:
        super().__init__(config=primary.config)
        self.primary = primary

    def initialize(self) -> None:
        self.data.chmod(0o700)  # the server refuses any other
        source = ["--host", HOST, "--port", str(self.primary.port), "--username", USER]
        how = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]
        copy = [*unprivileged(), required("pg_basebackup"), "-D", str(self.data)]
        self.run_program([*copy, *source, *how])

    def wait_for_replay(self) -> None:
        """Wait until it has what the primary has written so far."""
        written = value(self.primary, "SELECT pg_current_wal_flush_lsn()")
        until(lambda: value(self, REPLAYED, written), "the replication")

    def cut(self) -> None:
        """Inject the loss of the connection to the primary."""
        self.execute("ALTER SYSTEM SET primary_conninfo = ''", "SELECT pg_reload_conf()")
        until(lambda: value(self, RECEIVERS) == 0, "the end of the replication")
        injected_faults["replication cut"] += 1

    def promote(self) -> None:
        """Make it a primary of its own."""
        assert value(self, "SELECT pg_promote()"), "it is not promoted"
        injected_faults["pg_promote"] += 1


def value(server: PostgreSql, sql: str, *args: object) -> object:
    """Return what a query selects."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        row = connection.execute(sql, args).fetchone()
    return row and row[0]
