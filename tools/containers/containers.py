"""`make containers`: run docker-compose.yml in podman, where no registry of images can be reached.

    PORT=8000 COMPOSE_PROFILES=full .venv/bin/python tools/containers/containers.py [--check]

Needs root on Debian. The images are the project's own and, in place of the official ones, images
of the same names made of Debian's packages: same users, variables and health checks (see the
Containerfiles beside this module). With Docker and a registry, `docker compose up` needs none of
this. --check ends once every health check passes. Each start begins without data, and the end
removes all data.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tools.supervisor import say  # noqa: E402

PACKAGES = (
    "podman buildah runc conmon netavark aardvark-dns mmdebstrap iptables fuse-overlayfs catatonit"
)
STORES_FIRST = ("mariadb", "redis", "cache", "redlock", "zookeeper")
HEALTHY_SECONDS = 120.0


def defaults() -> dict[str, str]:
    """Return the variables of docker-compose.yml for a trial of all services, with new secrets."""
    return {
        "COMPOSE_PROFILES": "full",
        "PAYMENT_PROVIDER": "none",
        "HTTPS": "0",
        "PORT": "8000",
        "SECRET_KEY": secrets.token_hex(32),
        "MYSQL_PASSWORD": secrets.token_hex(16),
        "REDIS_PASSWORD": secrets.token_hex(16),
        "ZOOKEEPER_PASSWORD": secrets.token_hex(16),
        "SEED_PASSWORD": secrets.token_urlsafe(9),
    }


def services_of(profiles: str) -> dict[str, dict[str, Any]]:
    """Return the services of docker-compose.yml in these profiles, and those in none."""
    services = YAML(typ="safe").load(ROOT / "docker-compose.yml")["services"]
    asked = {*profiles.split(","), None} - {""}
    return {
        name: service
        for name, service in services.items()
        if asked & set(service.get("profiles", [None]))
    }


def run(*command: str | Path, check: bool = True) -> str:
    """Return the output of a command; exit with it if the command fails."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check and done.returncode:
        sys.exit(f"{done.stdout[-3000:]}\n{' '.join(map(str, command))} failed.")
    return done.stdout


def install() -> None:
    """Install podman, and make the image `debian` that all others are made from."""
    if os.geteuid() or shutil.which("apt-get") is None:
        sys.exit("This needs root on Debian. With a registry of images: docker compose up.")
    wanted = [name for name in PACKAGES.split() if not Path("/usr/share/doc", name).exists()]
    if wanted:
        say(f"Installing Debian packages: {' '.join(wanted)} ...")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        run("apt-get", "update", "-q")
        run("apt-get", "install", "-y", "-q", "--no-install-recommends", *wanted)
    if "localhost/debian" not in run("podman", "images", "--format", "{{.Repository}}").split():
        say("Making an image of Debian ...")
        with tempfile.TemporaryDirectory() as folder:
            tar = Path(folder, "debian.tar")
            kind = ["--variant=minbase", "--include=ca-certificates"]
            run("mmdebstrap", "--quiet", *kind, "bookworm", tar)
            run("podman", "import", "-q", tar, "localhost/debian")


def images() -> list[str]:
    """Return the public images that are named; Debian lacks those of the profile `monitoring`."""
    bases = re.findall(r"^FROM (\S+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    used = [one["image"] for one in services_of("full").values() if "build" not in one]
    return list(dict.fromkeys([*bases, *used]))


def build() -> None:
    """Build the stand-ins and the shop's image; podman keeps the layers that have not changed."""
    options = ["--network=host", "--isolation=chroot", "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        # Those that this machine trusts: the package index may be behind a proxy of its own.
        shutil.copy2("/etc/ssl/certs/ca-certificates.crt", folder)
        for file in HERE.glob("*.sh"):
            shutil.copy2(file, folder)
        for image in images():
            say(f"Building {image} ...")
            file = HERE / f"{image.partition(':')[0]}.Containerfile"
            tag = f"docker.io/library/{image}"
            run("podman", "build", *options, "-f", file, "-t", tag, folder)
    say("Building seckill ...")
    run("podman", "build", *options, "-t", "localhost/seckill", ROOT)


class Containers:
    """The services of docker-compose.yml, in the order that Docker starts them in."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.project = "seckill"
        os.environ.update(variables)
        self.services = services_of(os.environ["COMPOSE_PROFILES"])

    def replicas(self, name: str) -> int:
        return int(self.services[name].get("deploy", {}).get("replicas", 1))

    def compose(self, *command: str) -> str:
        profiles = [
            f"--profile={name}" for name in os.environ["COMPOSE_PROFILES"].split(",") if name
        ]
        return run(sys.executable, "-m", "podman_compose", "-p", self.project, *profiles, *command)

    def names(self, service: str = "") -> list[str]:
        """Return the names of the running containers, of one service or of all."""
        label = [f"--filter=label=io.podman.compose.service={service}"] if service else []
        project = f"--filter=label=io.podman.compose.project={self.project}"
        return run("podman", "ps", project, *label, "--format={{.Names}}").split()

    def start(self, services: Sequence[str]) -> None:
        """Start services; run their health checks, as Docker does, until all succeed."""
        for name in services:  # podman-compose takes one --scale
            scale = f"--scale={name}={self.replicas(name)}"
            self.compose("up", "-d", "--no-deps", "--no-recreate", scale, name)
        deadline = time.monotonic() + HEALTHY_SECONDS
        waiting = [name for service in services for name in self.names(service)]
        while waiting:
            waiting = [name for name in waiting if not self.is_healthy(name)]
            if waiting and time.monotonic() > deadline:
                logs = run("podman", "logs", "--tail=20", waiting[0], check=False)
                sys.exit(f"{logs}\nnot healthy: {', '.join(waiting)}")
            time.sleep(1 if waiting else 0)

    def is_healthy(self, name: str) -> bool:
        done = subprocess.run(
            ["podman", "healthcheck", "run", name], capture_output=True, check=False
        )
        return done.returncode == 0

    def up(self) -> None:
        self.down()  # of a start that was killed
        stores = [name for name in self.services if name.startswith(STORES_FIRST)]
        self.start(stores)
        self.compose("run", "--rm", "--no-deps", "-T", "migrate")
        self.start(["web", "worker", "consumer", "beat"])
        self.start([name for name in self.services if name not in stores and name != "migrate"])

    def down(self) -> None:
        if names := self.names():  # podman-compose forgets the second of a service
            run("podman", "rm", "--force", "--time=30", *names)
        self.compose("down", "--volumes")


def main() -> int:
    started = time.monotonic()
    os.environ.setdefault("CONTAINERS_CONF", str(HERE / "containers.conf"))
    install()
    build()
    given = defaults().items()
    containers = Containers({name: os.environ.get(name, value) for name, value in given})
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(how, lambda *_: sys.exit(0))
    try:
        containers.up()
        names = containers.names()
        say(f"{len(names)} containers are healthy after {time.monotonic() - started:.0f} s.")
        if "--check" not in sys.argv[1:]:
            say(f"The shop: http://localhost:{os.environ['PORT']}/")
            say(f"li, wang, zhang and amy (staff) have the password {os.environ['SEED_PASSWORD']}.")
            say("Ctrl-C stops everything.")
            signal.pause()
    finally:
        containers.down()
    return 0


if __name__ == "__main__":
    sys.exit(main())
