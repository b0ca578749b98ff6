"""A standby that PostgreSQL streams its changes to, and its promotion."""

import psycopg

from devservers import HOST, PostgreSql
from devservers.base import injected_faults
from devservers.faults.waiting import until
from devservers.postgresql import USER, unprivileged
from devservers.programs import required

RECEIVERS = "SELECT COUNT(*) FROM pg_stat_wal_receiver"
REPLAYED = "SELECT pg_last_wal_replay_lsn() >= %s"


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
        written = self._value(self.primary, "SELECT pg_current_wal_flush_lsn()")
        until(lambda: self._value(self, REPLAYED, written), "the replication")

    def cut(self) -> None:
        """Inject the loss of the connection to the primary."""
        self._value(self, "ALTER SYSTEM SET primary_conninfo = ''")
        self._value(self, "SELECT pg_reload_conf()")
        until(lambda: self._value(self, RECEIVERS) == 0, "the end of the replication")
        injected_faults["replication cut"] += 1

    def promote(self) -> None:
        """Make it a primary of its own."""
        assert self._value(self, "SELECT pg_promote()"), "it is not promoted"
        injected_faults["pg_promote"] += 1

    def _value(self, server: PostgreSql, sql: str, *args: object) -> object:
        with psycopg.connect(server.url, autocommit=True) as connection:
            cursor = connection.execute(sql, args)
            row = cursor.fetchone() if cursor.description else None
        return row and row[0]
