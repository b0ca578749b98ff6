"""A private HAProxy with a file of deploy/haproxy."""

import re
from pathlib import Path

from devservers import HOST, Server
from devservers.programs import required

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "haproxy"


class HaProxy(Server):
    """HAProxy with deploy/haproxy/FILE.cfg; `ports` are those of each server and of its check.

    `hello`: the first message of a client to which a server replies.
    """

    has_one_writer = True

    def __init__(self, file: str, *ports: tuple[int, int], hello: bytes = b"") -> None:
        super().__init__()
        self.file, self.ports, self.hello = file, ports, hello

    @property
    def url(self) -> str:
        return f"{HOST}:{self.port}"

    def command(self) -> list[str]:
        text = re.sub(r"bind :\d+", f"bind {self.url}", (FOLDER / f"{self.file}.cfg").read_text())
        for number, (port, check) in enumerate(self.ports, 1):
            address = rf" db{number}:\d+ check( port \d+)?"
            text, count = re.subn(address, f" {HOST}:{port} check port {check}", text)
            assert count == 1
        if not self.has_one_writer:
            text = re.sub(r" backup|  stick.*", "", text)
        settings = self.folder / "haproxy.cfg"
        settings.write_text(text)
        return [required("haproxy"), "-db", "-f", str(settings)]

    def is_ready(self) -> bool:
        return bool(self.send(self.hello))
