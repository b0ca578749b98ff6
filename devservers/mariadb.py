"""A private MariaDB."""

import os
import pwd
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from .base import HOST, Server
from .programs import ServerError, required


class MariaDb(Server):
    """MariaDB with an empty database `shop`: utf8mb4, durable as shipped."""

    @property
    def url(self) -> str:
        return f"mysql://root@{HOST}:{self.port}/shop"

    def prepare(self) -> None:
        required("mariadbd")
        required("my_print_defaults")
        if find_spec("MySQLdb") is None:
            raise ServerError(
                "mysqlclient is not installed: pip install --require-hashes -r "
                "requirements/production.txt (after apt-get install libmariadb-dev pkg-config gcc)"
            )
        self._sql.write_text("CREATE DATABASE IF NOT EXISTS shop CHARACTER SET utf8mb4;\n")
        install = [required("mariadb-install-db"), "--no-defaults", f"--datadir={self.data}"]
        install += ["--auth-root-authentication-method=normal", "--skip-test-db"]
        install += ["--skip-name-resolve", f"--user={_user()}", f"--tmpdir={self.folder}"]
        self.run_program(install)

    def command(self) -> list[str]:
        return [
            required("mariadbd"),
            "--no-defaults",
            f"--datadir={self.data}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self._sql}",
            f"--bind-address={HOST}",
            f"--port={self.port}",
            f"--user={_user()}",
            # A starting server removes all temporary tables there, also those of other servers.
            f"--tmpdir={self.folder}",
            "--skip-name-resolve",
            "--innodb-buffer-pool-size=128M",
            "--max-connections=400",
            # Without it Chinese text fails with error 1366.
            "--character-set-server=utf8mb4",
            *self.config,
        ]

    def is_ready(self) -> bool:
        # The handshake: four bytes of header, then the protocol version, or 255 for an error.
        return self.send(b"")[4:5] == b"\x0a"

    def execute(self, *statements: str) -> None:
        driver = import_module("MySQLdb")
        try:
            with closing(driver.connect(HOST, "root", "", "shop", self.port)) as connection:
                connection.autocommit(True)
                for statement in statements:
                    connection.cursor().execute(statement)
        except driver.Error as error:
            raise ServerError(str(error)) from error

    @property
    def _sql(self) -> Path:
        return self.folder / "init.sql"


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name
