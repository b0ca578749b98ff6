"""Where a Redis can be: behind a password, a Unix socket, a database number, TLS."""

import subprocess
from pathlib import Path

import redis as client

from devservers import HOST, Redis, reserve_port
from devservers.faults.waiting import WAIT_TIMEOUT
from devservers.programs import required
from locking.backends.redis.backend import RedisBackend
from tests.locking.backends.redis.redis_tools import claim, waiters


def hand_over(url: str) -> None:
    backend, holder, patient = RedisBackend("redis", location=url), claim(), claim()
    backend.acquire(holder, 0)
    with waiters(backend, patient) as (waiter,):
        backend.release(holder, 0)
        assert waiter.result(WAIT_TIMEOUT) is not None
    backend.release(patient, 0)
    backend.close()


def test_password_unix_socket_and_database(tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    with Redis(config=["--unixsocket", str(path)]) as server:
        with client.Redis.from_url(server.url) as raw:
            raw.config_set("requirepass", "secret")
        hand_over(f"unix://:secret@{path}?db=1")
        hand_over(server.url.replace("//", "//:secret@"))


def test_tls(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    subprocess.run(
        [
            *(required("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    port, mark = reserve_port()
    config = ["--tls-port", str(port), "--tls-auth-clients", "no"]
    config += ["--tls-cert-file", str(certificate), "--tls-key-file", str(key)]
    with mark, Redis(config=config):
        hand_over(f"rediss://{HOST}:{port}/0?ssl_cert_reqs=none&ssl_check_hostname=false")
