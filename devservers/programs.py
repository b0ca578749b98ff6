"""Programs of Debian packages that the private servers and the tests run."""

import os
import shutil
from pathlib import Path

# redis-server itself would start a service; redis-tools has the same program under another name.
DEBIAN_PACKAGES = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "mariadb": "mariadb-client-core",
    "mariadb-dump": "mariadb-client",
    "redis-server": "redis-tools",
    "redis-check-rdb": "redis-tools",
    "java": "default-jre-headless",
    "cc": "gcc",
    "zookeeper.jar": "libzookeeper-java",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "pg_basebackup": "postgresql-client",
    "pg_dump": "postgresql-client",
    "psql": "postgresql-client",
    "pgbouncer": "pgbouncer",
    "setpriv": "util-linux",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "etcd": "etcd-server",
    "patroni": "patroni",
    "haproxy": "haproxy",
    "libgalera_smm.so": "galera-4",
    "unshare": "util-linux",
    "chromium": "chromium",
    "wrk": "wrk",
    "promtool": "prometheus",
    "xgettext": "gettext",
    "make": "make",
    "curl": "curl",
}
# Debian keeps servers off the PATH of ordinary users.
_POSTGRESQL = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")))[-1:]
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", *_POSTGRESQL])


class ServerError(Exception):
    """A private server is not available."""


class ServerMissing(ServerError):
    """A program is not installed; the message is the command that installs it on Debian."""

    def __init__(self, program: str) -> None:
        install = f"apt-get install -y --no-install-recommends {DEBIAN_PACKAGES[program]}"
        super().__init__(f"{program} is not installed: {install}")


def installed(program: str) -> str | None:
    """Return the path of a program, or None."""
    return shutil.which(program, path=_PATH)


def required(program: str) -> str:
    """Return the path of a program in `DEBIAN_PACKAGES`; raise ServerMissing without it."""
    if path := installed(program):
        return path
    raise ServerMissing(program)
