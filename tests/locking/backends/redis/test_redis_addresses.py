"""Where a Redis can be: behind a password, a Unix socket, a database number, TLS."""

import re
import subprocess
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis as client

from devservers import HOST, Redis, reserve_port
from devservers.faults.waiting import WAIT_TIMEOUT
from devservers.programs import required
from locking import LockUnavailable
from locking.backends import redis as redis_backend
from locking.backends.redis.addresses import group_of, url_problem
from locking.backends.redis.backend import RedisBackend
from tests.locking.backends.redis.redis_tools import claim, waiters
from tests.locking.backends.store_drivers import RULE

LUA = Path(redis_backend.__file__).parents[1] / "lua"


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


def certify(folder: Path, name: str) -> None:
    """Create a key and a certificate, which is also its own authority."""
    kind = ("-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    address = ("-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", f"{name}.key", "-out", f"{name}.crt")
    command = [required("openssl"), "req", *kind, *address, *files]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    required("redis-check-rdb")  # the Valkey of the package index has no TLS
    for name in ("server", "client", "stranger"):
        certify(tmp_path, name)
    port, mark = reserve_port()
    config = ["--tls-port", str(port), "--tls-ca-cert-file", f"{tmp_path}/client.crt"]
    config += ["--tls-cert-file", f"{tmp_path}/server.crt"]
    config += ["--tls-key-file", f"{tmp_path}/server.key"]

    def url(authority: str, client: str = "") -> str:
        files = {"ssl_ca_certs": f"{tmp_path}/{authority}.crt"}
        if client:
            files |= {"ssl_certfile": f"{tmp_path}/{client}.crt"}
            files |= {"ssl_keyfile": f"{tmp_path}/{client}.key"}
        found = f"rediss://{HOST}:{port}/0?{urlencode(files)}"
        assert url_problem(found) is None
        return found

    with mark, Redis(config=config):
        hand_over(url("server", "client"))
        for refused in (url("server"), url("stranger", "client"), url("server", "stranger")):
            with pytest.raises(LockUnavailable):
                RedisBackend("redis", location=refused).acquire(claim(), 0)


CERTIFICATE = "ssl_ca_certs=/absent.crt"


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("redis+sentinel://host", "name the service"),
        ("redis+sentinel:///locks", "'' is no host"),
        ("redis+sentinel://host:x/locks", "'host:x' is no host: write host1:26379"),
        ("redis+sentinel://host/locks/x", "'x' is no database"),
        ("redis+cluster://a,b/1", "a Cluster has only database 0"),
        ("redis+clustre://a", "write redis+sentinel://"),
        (f"rediss+sentinel://host/locks?{CERTIFICATE}", "/absent.crt, cannot be read"),
        (f"redis+cluster://host/?{CERTIFICATE}", "needs TLS: write rediss"),
        (f"redis://host/0?{CERTIFICATE}", "needs TLS: write rediss"),
    ],
)
def test_bad_url_is_refused_with_what_to_write(url: str, part: str) -> None:
    (message,) = RedisBackend.check("redis", {"LOCATION": url})
    assert message.id == "locking.E020"
    assert part in message.msg


def test_url_of_sentinels_names_logins_ports_and_database() -> None:
    group = group_of(
        "rediss+sentinel://u:p%40@a,[::1]:7/locks/3?sentinel_password=s&ssl_cert_reqs=none"
    )
    assert group is not None
    assert group.members == (
        "rediss://:s@a:26379/?ssl_cert_reqs=none",
        "rediss://:s@[::1]:7/?ssl_cert_reqs=none",
    )
    assert group.server("::2", 8) == "rediss://u:p%40@[::2]:8/3?ssl_cert_reqs=none"


SENT = "eval evalsha subscribe scan ping info role wait asking cluster|slots pubsub|numsub"
"""What clients send. The scripts call one command that needs a second word: PUBSUB NUMSUB."""


def test_documented_rule_allows_no_more_than_the_commands_of_the_lock() -> None:
    """It suffices: the contract runs on all kinds of deployments as the user that it creates."""
    allowed = {part[1:] for part in RULE.split() if part.startswith("+")}
    scripts = "".join(path.read_text() for path in LUA.glob("redis_*.lua"))
    in_scripts = {name.lower() for name in re.findall(r"redis\.call\('(\w+)'", scripts)}
    assert allowed == {*SENT.split()} | in_scripts - {"pubsub"}
