"""docker-compose.yml and its image, as far as they can be checked without an engine."""

import gzip
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from podman_compose import var_interpolate
from ruamel.yaml import YAML

from devservers import HOST
from devservers.faults.waiting import until
from devservers.programs import required
from tests import programs
from tools.containers import containers

ROOT = Path(__file__).parent.parent
JOBS = {"migrate"}
Services = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    return YAML(typ="safe").load(ROOT / "docker-compose.yml")


@pytest.fixture(scope="module")
def services(compose: dict[str, Any]) -> Services:
    return compose["services"]


def test_follows_the_compose_specification(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [program, "--builtin-schema", "vendor.compose-spec"]
    programs.output(*command, ROOT / "docker-compose.yml")
    # The control: the same check finds a planted error.
    planted = tmp_path / "docker-compose.yml"
    text = (ROOT / "docker-compose.yml").read_text()
    planted.write_text(text.replace("restart: unless-stopped", "restart: [unless-stopped]"))
    assert programs.run(*command, planted)[0] != 0


class Answer(BaseHTTPRequestHandler):
    """Answers each path with the status that it names."""

    def do_GET(self) -> None:
        self.send_response(int(self.path[1:]))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_health_checks_ask_no_proxy(services: Services) -> None:
    """Docker gives each container the proxy that its configuration names."""
    own = re.compile(r"127\.0\.0\.1:\d+/[\w/-]+")
    tests = [service.get("healthcheck", {}).get("test", []) for service in services.values()]
    commands = [words[1:] for words in tests if own.search(" ".join(words))]
    assert len(commands) == 5
    env = {"PATH": os.environ["PATH"], "http_proxy": f"http://{HOST}:1/"}
    with ThreadingHTTPServer((HOST, 0), Answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        for status, command in product((200, 503), commands):
            here = [own.sub(f"{HOST}:{server.server_port}/{status}", word) for word in command]
            code, printed = programs.run(*here, env=env)
            assert (code == 0) == (status == 200), (here, printed)
        server.shutdown()


def test_references_lead_somewhere(compose: dict[str, Any], services: Services) -> None:
    for name, service in services.items():
        for other, wanted in service.get("depends_on", {}).items():
            assert (other in JOBS) == (wanted["condition"] == "service_completed_successfully")
            assert other in services, name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("/"):
                assert source == volume, "a volume without a name"
            elif source.startswith("."):
                assert (ROOT / source).is_file(), source
            else:
                assert source in compose["volumes"], source


def test_nginx_fits_its_cpus_and_the_web_processes(services: Services) -> None:
    """Five sign-ins a second pass for each of these.

    `auto` counts the CPUs of the machine: with 128, its processes alone took 253 of the 384 MB.
    """
    web, conf = services["web"], (ROOT / "deploy/nginx.conf").read_text()
    workers = int(var_interpolate(web["environment"]["WEB_CONCURRENCY"], {}))
    rate = 5 * workers * web["deploy"]["replicas"]
    assert f"zone=hashes:32k rate={rate}r/s;" in conf
    cpus = services["proxy"]["deploy"]["resources"]["limits"]["cpus"]
    assert f"\nworker_processes {cpus};\n" in conf


def test_settings_read_what_the_stack_sets(services: Services) -> None:
    files = (
        "shop/settings/base.py",
        "shop/settings/production.py",
        "deploy/gunicorn_conf.py",
    )
    settings = "".join((ROOT / file).read_text() for file in files)
    for_others = {"WEB_CONCURRENCY", "DJANGO_SETTINGS_MODULE"}
    unread = {name for name in services["web"]["environment"] if f'"{name}"' not in settings}
    assert unread == for_others


def test_secrets_come_from_the_environment(services: Services) -> None:
    for name, service in services.items():
        for variable, value in service.get("environment", {}).items():
            if variable in {"SECRET_KEY", "MARIADB_PASSWORD", "ZOOKEEPER_PASSWORD"}:
                source = variable.replace("MARIADB", "MYSQL")
                assert value.startswith(f"${{{source}:?"), name
    assert "${MYSQL_PASSWORD:?" in services["web"]["environment"]["DATABASE_URL"]
    assert "${REDIS_PASSWORD:?" in services["web"]["environment"]["REDIS_URL"]
    for name, service in services.items():
        if service.get("image", "").startswith("redis:"):
            assert service["command"][1:3] == ["--requirepass", "${REDIS_PASSWORD}"], name


def test_root_of_the_database_has_no_password_and_no_way_in(services: Services) -> None:
    """The image logs a password that it chooses, and lets root in from everywhere."""
    given = services["mariadb"]["environment"]
    names = {name for name in given if "ROOT" in name}
    assert names == {"MARIADB_ALLOW_EMPTY_ROOT_PASSWORD", "MARIADB_ROOT_HOST"}
    assert given["MARIADB_ROOT_HOST"] == "localhost"


def test_log_of_the_seeded_shop_has_no_password(services: Services, tmp_path: Path) -> None:
    """`manage.py seed` prints the superuser's for those who call it."""
    (tmp_path / "python").write_text('#!/bin/sh\necho "$*" >>calls\necho "$*"\n')
    (tmp_path / "python").chmod(0o755)
    words = [var_interpolate(w, {"SEED_PASSWORD": "x"}) for w in services["migrate"]["command"]]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    said = programs.output(*words, cwd=tmp_path, env=env)
    assert (tmp_path / "calls").read_text() == "manage.py migrate --noinput\nmanage.py seed\n"
    assert said == "manage.py migrate --noinput\n"


def test_each_image_has_a_stand_in() -> None:
    names = {image.partition(":")[0] for image in containers.images()}
    assert names == {file.stem for file in containers.HERE.glob("*.Containerfile")}


def test_only_the_cache_evicts(services: Services) -> None:
    for name, service in services.items():
        if service.get("image", "").startswith("redis:"):
            command = service["command"]
            policy = "allkeys-lru" if name == "cache" else "noeviction"
            assert command[command.index("--maxmemory-policy") + 1] == policy, name
            limit = int(service["deploy"]["resources"]["limits"]["memory"].removesuffix("m"))
            used = int(command[command.index("--maxmemory") + 1].removesuffix("mb"))
            assert used < limit, f"{name}: the kernel would end it before Redis refuses or evicts"


def test_database_is_the_version_of_the_tests(services: Services) -> None:
    printed = programs.output(required("mariadbd"), "--version")
    (tested,) = re.findall(r"Ver (\d+\.\d+)", printed)
    assert services["mariadb"]["image"] == f"mariadb:{tested}"


def test_image_copies_what_exists_and_runs_as_nobody_special() -> None:
    image = (ROOT / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", image, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
    users = re.findall(r"^USER (\w+)$", image, re.MULTILINE)
    assert users
    assert users[-1] not in {"root", "0"}
    assert "--require-hashes" in image


def test_image_contains_the_shop_without_the_lab() -> None:
    included = (ROOT / ".dockerignore").read_text().splitlines()
    packages = {"locking", "inventory", "shop", "templates", "static"}
    assert {f"!{package}" for package in packages} <= set(included)
    assert "!loadtest" not in included


def test_only_the_proxy_is_reached_from_outside(services: Services) -> None:
    public = {
        name
        for name, service in services.items()
        for port in service.get("ports", [])
        if not port.startswith("127.0.0.1:")
    }
    assert public == {"proxy"}


def test_proxy_reaches_the_web_alone_and_stores_reach_nobody(
    compose: dict[str, Any], services: Services
) -> None:
    members = {
        network: {name for name in services if network in services[name]["networks"]}
        for network in compose["networks"]
    }
    assert members["edge"] == {"proxy", "web"}
    assert compose["networks"]["stores"] == {"internal": True}
    ours = {"migrate", "web", "worker", "consumer", "beat"}
    assert ours < members["stores"]
    for name in members["stores"] - ours - {"prometheus"}:
        assert services[name]["networks"] == ["stores"], name


def test_no_container_has_a_privilege(services: Services) -> None:
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        # The image of ZooKeeper writes its configuration at each start.
        assert service.get("read_only", False) != name.startswith("zookeeper"), name
        own = "build" in service or "monitoring" in service.get("profiles", [])
        assert own or service["user"].split(":")[0] not in {"0", "root"}, name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name


def test_every_lasting_service_has_a_health_check_and_limits(services: Services) -> None:
    assert {name for name in services if "healthcheck" not in services[name]} == JOBS
    for name in services.keys() - JOBS:
        assert services[name]["deploy"]["resources"]["limits"].keys() == {"cpus", "memory"}, name
        assert services[name]["restart"] == "unless-stopped"


def test_the_small_stack_has_no_profile_and_its_locks_no_servers(services: Services) -> None:
    full = {name for name in services if services[name].get("profiles") == ["full"]}
    assert {name.rstrip("-12345") for name in full} == {"redlock", "zookeeper"}
    assert len(full) == 8
    for variable in ("REDLOCK_URLS", "ZOOKEEPER_HOSTS"):
        assert var_interpolate(services["web"]["environment"][variable], {}) == ""


def test_what_one_container_counted_the_next_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "metrics"
    folder.mkdir()
    (folder / "counter_7.db").touch()
    env = {"PATH": "/bin:/usr/bin", "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    assert programs.output("sh", ROOT / "deploy/entrypoint.sh", "ls", folder, env=env) == ""
    assert "deploy/entrypoint.sh" in (ROOT / "Dockerfile").read_text()


PROGRAMS = {
    "mariadb-dump": 'echo a; touch "$MYSQL_HOST"; until [ -e go ]; do sleep .05; done; echo b',
    "flock": 'touch "$MYSQL_HOST"; exec /usr/bin/flock "$@"',
}


def test_two_backups_at_once_are_both_whole(tmp_path: Path) -> None:
    """One by hand while the daily one runs: it removed the file of the other."""
    folder = tmp_path / "backups"
    folder.mkdir()
    for name, script in PROGRAMS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)

    def begin(name: str) -> subprocess.Popen[bytes]:
        env = dict.fromkeys(("MYSQL_HOST", "MYSQL_USER", "MYSQL_DATABASE"), name)
        env |= {"PATH": f"{tmp_path}:/usr/bin:/bin", "BACKUPS": str(folder)}
        backup = subprocess.Popen(["sh", ROOT / "deploy/backup.sh", "once"], env=env)
        until((folder / name).exists, "its dump, or its wait for the other")
        return backup

    with begin("first") as first, begin("second") as second:
        (folder / "go").touch()
        assert (first.wait(20), second.wait(20)) == (0, 0)
    whole = {gzip.decompress(file.read_bytes()) for file in folder.glob("shop-*.sql.gz")}
    assert whole == {b"a\nb\n"}
