"""A private nginx with deploy/nginx.conf."""

import os
from pathlib import Path

from .base import HOST, Server
from .programs import required

CONF = Path(__file__).resolve().parent.parent / "deploy" / "nginx.conf"


class Nginx(Server):
    """nginx with deploy/nginx.conf, with other addresses and directories.

    `web`: HOST:PORT of the shop; `resolver`: the name server that it asks if HOST is a name.
    `processes`: those of the shop, which limit the sign-ins.
    """

    def __init__(self, *, web: str, resolver: str = HOST, processes: int = 4) -> None:
        super().__init__()
        self.web, self.resolver, self.processes = web, resolver, processes

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def command(self) -> list[str]:
        text = CONF.read_text()
        for theirs, ours in (
            ("listen 8080;", f"listen {HOST}:{self.port};"),
            ("web:8000;", f"{self.web};"),
            ("rate=20r/s", f"rate={5 * self.processes}r/s"),
            ("${NGINX_LOCAL_RESOLVERS}", self.resolver),
            (" /tmp/", f" {self.data}/"),
        ):
            assert theirs in text
            text = text.replace(theirs, ours)
        file = self.folder / "nginx.conf"
        file.write_text(text)
        own = f"daemon off; pid {self.folder / 'pid'};" + (" user root;" * (os.geteuid() == 0))
        options = ["-e", "stderr", "-p", str(self.folder), "-c", str(file), "-g", own]
        return [required("nginx"), *options]

    def is_ready(self) -> bool:
        return self.send(b"GET /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404")
