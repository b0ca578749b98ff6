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
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tools.setup import install_debian_packages, output, run, say  # noqa: E402

PACKAGES = (
    "podman buildah runc conmon netavark aardvark-dns mmdebstrap iptables fuse-overlayfs catatonit"
)
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


def do(*command: str | Path) -> str:
    """Return the output of a command; exit with it if the command fails."""
    return output(f"{' '.join(map(str, command))} failed.", *command)


def install() -> None:
    """Install podman, and make the image `debian` that all others are made from."""
    if os.geteuid() or shutil.which("apt-get") is None:
        sys.exit("This needs root on Debian. With a registry of images: docker compose up.")
    install_debian_packages(PACKAGES.split())
    if "localhost/debian" not in do("podman", "images", "--format", "{{.Repository}}").split():
        say("Making an image of Debian ...")
        with tempfile.TemporaryDirectory() as folder:
            tar = Path(folder, "debian.tar")
            kind = ["--variant=minbase", "--include=ca-certificates"]
            do("mmdebstrap", "--quiet", *kind, "bookworm", tar)
            do("podman", "import", "-q", tar, "localhost/debian:bookworm")


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
            do("podman", "build", *options, "-f", file, "-t", tag, folder)
    say("Building seckill ...")
    do("podman", "build", *options, "-t", "localhost/seckill", ROOT)


def compose(*command: str) -> str:
    return do(sys.executable, "-m", "podman_compose", *command)


def running() -> list[str]:
    """Return the names of the running containers."""
    project = "--filter=label=io.podman.compose.project=seckill"
    return do("podman", "ps", project, "--format={{.Names}}").split()


def start(services: Iterable[str]) -> None:
    """Start services; run the health checks, as Docker does, until all succeed."""
    compose("up", "-d", "--no-deps", *services)
    deadline = time.monotonic() + HEALTHY_SECONDS
    waiting = running()
    while waiting := [name for name in waiting if run("podman", "healthcheck", "run", name)[0]]:
        if time.monotonic() > deadline:
            _, logs = run("podman", "logs", "--tail=20", waiting[0])
            sys.exit(f"{logs}\nnot healthy: {', '.join(waiting)}")
        time.sleep(1)


def up() -> None:
    """Start all, in the order that Docker starts them in."""
    down()  # of a start that was killed
    services = services_of(os.environ["COMPOSE_PROFILES"])
    stores = {name for name, service in services.items() if "depends_on" not in service}
    start(stores)
    compose("run", "--rm", "--no-deps", "-T", "migrate")
    start(services.keys() - stores - {"migrate"})


def down() -> None:
    # A worker that has lost Redis does not end by itself.
    compose("down", "--remove-orphans", "--volumes", "-t", "30")


def main() -> None:
    started = time.monotonic()
    os.chdir(ROOT)
    os.environ.setdefault("CONTAINERS_CONF", str(HERE / "containers.conf"))
    install()
    build()
    os.environ.update(defaults() | os.environ)
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(how, lambda *_: sys.exit(0))
    try:
        up()
        say(f"{len(running())} containers are healthy after {time.monotonic() - started:.0f} s.")
        if "--check" not in sys.argv[1:]:
            say(f"The shop: http://localhost:{os.environ['PORT']}/")
            say(f"li, wang, zhang and amy (staff) have the password {os.environ['SEED_PASSWORD']}.")
            say("Ctrl-C stops everything.")
            signal.pause()
    finally:
        down()


if __name__ == "__main__":
    main()
