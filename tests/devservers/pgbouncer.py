"""A private PgBouncer."""

from typing import Any

from devservers import HOST, PostgreSql, Server
from devservers.postgresql import HELLO, USER, unprivileged
from devservers.programs import required


class PgBouncer(Server):
    """A connection pooler for transactions in front of a PostgreSQL."""

    def __init__(self, server: PostgreSql, *, sessions: int = 20, **options: Any) -> None:
        super().__init__(**options)
        self.server, self.sessions = server, sessions

    @property
    def url(self) -> str:
        return self.server.url.replace(str(self.server.port), str(self.port))

    def command(self) -> list[str]:
        settings = {
            "listen_addr": HOST,
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": self.sessions,
            "query_wait_timeout": 10,
            # Drivers send it, and PgBouncer refuses what it does not know.
            "ignore_startup_parameters": "extra_float_digits",
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        database = f"* = host={HOST} port={self.server.port} user={USER}"
        self.folder.chmod(0o755)
        config = self.folder / "pgbouncer.ini"
        config.write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))
        return [*unprivileged(), required("pgbouncer"), str(config), *self.config]

    def is_ready(self) -> bool:
        return self.send(HELLO).startswith(b"R")
