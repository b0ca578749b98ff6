"""Where a Redis can be: behind a password, a Unix socket, a database number, TLS."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import pytest
import redis as client

from devservers import HOST, Redis, reserve_port
from devservers.faults.waiting import WAIT_TIMEOUT, until
from devservers.programs import required
from locking import LockUnavailable
from locking.backends.redis.addresses import group_of, url_problem
from locking.backends.redis.backend import RedisBackend
from locking.lease import Lock
from tests.devservers.redis_groups import Node, RedisCluster, SentinelRedis
from tests.locking.backends.redis.redis_tools import claim, waiters
from tests.locking.calls import store_of

ROOT = Path(__file__).parents[4]


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


def openssl(folder: Path, *arguments: object) -> None:
    subprocess.run(
        [required("openssl"), *map(str, arguments)], check=True, capture_output=True, cwd=folder
    )


def certify(folder: Path, authority: str, *names: str) -> None:
    """Create an authority, and a key and a certificate of it for each name."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    new = ("req", *curve, "-nodes", "-subj", f"/CN={authority}")
    openssl(
        folder, *new, "-x509", "-days", 2, "-keyout", f"{authority}.key", "-out", f"{authority}.crt"
    )
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1")
    for name in names:
        openssl(folder, *new[:-1], f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        signer = ("-CA", f"{authority}.crt", "-CAkey", f"{authority}.key", "-CAcreateserial")
        files = ("-in", f"{name}.csr", "-out", f"{name}.crt", "-extfile", "extensions")
        openssl(folder, "x509", "-req", "-days", 2, *signer, *files)


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    certify(tmp_path, "ours", "server", "client")
    certify(tmp_path, "theirs", "stranger")
    port, mark = reserve_port()
    config = ["--tls-port", str(port), "--tls-ca-cert-file", f"{tmp_path}/ours.crt"]
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
        hand_over(url("ours", "client"))
        for refused in (url("ours"), url("theirs", "client"), url("ours", "stranger")):
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


RULE = re.search(
    r"^ACL SETUSER locks .*$", (ROOT / "docs/how-to/redis-deployments.md").read_text(), re.M
)
OWN = {"acl|setuser", "config|resetstat", "info", "hello", "auth", "ping", "command", "replconf"}
OWN |= {"psync", "cluster|slots", "role", "wait", "asking", "config|get", "client|setinfo"}
"""Commands of the test, of replicas, and of deployments other than one server."""


def pass_through(lock: Lock) -> None:
    """Acquire the lock and release it."""
    assert lock.acquire(timeout=WAIT_TIMEOUT)
    lock.release()


def exercise(url: str) -> None:
    """Send every command of the lock, and of semaphores and read-write locks."""
    backend = RedisBackend("redis", location=url)
    contend(backend)
    assert backend.acquire(claim(), 0)
    assert backend.break_lock("n")
    share(backend)
    assert not backend.inspect()
    backend.probe()
    backend.close()
    assert RedisBackend.check_store("redis", {"LOCATION": url}) == []


def contend(backend: RedisBackend) -> None:
    """Hand a lock over to two waiters."""
    holder, waiting = claim(), [claim(), claim()]
    grant = backend.acquire(holder, 0)
    assert grant
    assert backend.acquire(claim(), 0.01) is None
    backend.extend(holder, grant.token, 60)
    with waiters(backend, *waiting) as waits:
        backend.set_depth(holder, grant.token, 2)
        backend.release(holder, grant.token)
        for _ in range(2):
            until(lambda: any(wait.done() for wait in waits), "a grant")
            first = next(number for number, wait in enumerate(waits) if wait.done())
            backend.release(waiting.pop(first), waits.pop(first).result().token)


def share(backend: RedisBackend) -> None:
    """Hand a semaphore over to two waiters, and use a lock of readers and writers."""
    semaphore = store_of(backend).semaphore("s", 1)
    assert semaphore.acquire(timeout=WAIT_TIMEOUT)
    with ThreadPoolExecutor(3) as pool:
        waits = [pool.submit(pass_through, store_of(backend).semaphore("s", 1)) for _ in range(2)]
        waits.append(pool.submit(pass_through, store_of(backend).read_write("s").write()))
        until(lambda: [one.waiters for one in backend.inspect()] == [2], "queueing")
        semaphore.extend(60)
        semaphore.release()
        for wait in waits:
            wait.result(WAIT_TIMEOUT)


def used_commands(server: Node) -> set[str]:
    with client.Redis.from_url(server.url) as raw:
        return {name.removeprefix("cmdstat_") for name in raw.info("commandstats")}


def test_documented_rule_allows_exactly_the_commands_of_the_lock() -> None:
    assert RULE is not None
    allowed = {part[1:] for part in RULE[0].split() if part.startswith("+")}
    with Node() as server:
        server.ask(RULE[0])
        exercise(server.url.replace("//", "//locks:secret@"))
        assert used_commands(server) - OWN == allowed - OWN
        with client.Redis.from_url(server.url.replace("//", "//locks:secret@")) as raw:
            for command in (("GET", "other"), ("CONFIG", "GET", "*"), ("PUBLISH", "x", "y")):
                with pytest.raises(client.exceptions.NoPermissionError):
                    raw.execute_command(*command)


@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_documented_rule_suffices_for_several_servers(
    request: pytest.FixtureRequest, kind: str
) -> None:
    servers: SentinelRedis | RedisCluster = request.getfixturevalue(f"redis_{kind}")
    assert RULE is not None
    for node in servers.masters if isinstance(servers, RedisCluster) else [servers.master]:
        node.ask(RULE[0])
    exercise(servers.url.replace("//", "//locks:secret@"))
