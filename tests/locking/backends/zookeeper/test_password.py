"""Locks with a password, and strangers on the same ensemble."""

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from kazoo.exceptions import NoAuthError

from devservers import ZooKeeper
from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking import LockUnavailable
from locking.backends.zookeeper.backend import ZooKeeperBackend
from locking.testing.calls import within
from tests.fault_rows import SLACK
from tests.locking.backends.zookeeper.test_zookeeper import connected, name
from tests.locking.calls import acquired, store_of

__all__ = ["name"]

SECRET = "secret"  # noqa: S105
Client = Callable[[str], ZooKeeperBackend]


@pytest.fixture
def client(zookeeper: ZooKeeper) -> Iterator[Client]:
    """Open clients with one password or another on the same nodes."""
    prefix, opened = f"/password-{uuid.uuid4().hex}", list[ZooKeeperBackend]()

    def connect(password: str) -> ZooKeeperBackend:
        opened.append(connected(zookeeper.hosts, PREFIX=prefix, PASSWORD=password))
        return opened[-1]

    yield connect
    for one in opened:
        one.close()


def assert_refused(stranger: ZooKeeperBackend, name: str) -> None:
    calls: list[Callable[[], object]] = [
        *(lambda timeout=timeout: store_of(stranger).lock(name).acquire(timeout=timeout)
          for timeout in (0, WAIT_TIMEOUT)),
        lambda: store_of(stranger).semaphore(name, 2).acquire(timeout=WAIT_TIMEOUT),
        lambda: store_of(stranger).lock(name).locked(),
        lambda: stranger.break_lock(name),
        stranger.inspect,
    ]  # fmt: skip
    for call in calls:
        with within(SLACK), pytest.raises(LockUnavailable, match="another PASSWORD"):
            call()


@pytest.mark.parametrize("theirs", ["", "wrong"])
def test_stranger_is_refused_and_leaves_the_queue_alone(
    client: Client, name: str, theirs: str
) -> None:
    mine, stranger = client(SECRET), client(theirs)
    with store_of(mine).lock(name, timeout=5) as lease:
        assert_refused(stranger, name)
        session = stranger.session
        assert session is not None
        assert not session.pending_deletes, "it would be refused again and again"
        (node,) = mine.queue(name)
        for ask in (
            lambda: session.client.get_children(mine._parent(name)),
            lambda: session.client.get(f"{mine._parent(name)}/{node}"),
            lambda: session.client.delete(f"{mine._parent(name)}/{node}"),
            lambda: session.client.create(f"{mine._parent(name)}/x"),
        ):
            with pytest.raises(NoAuthError):
                ask()
        assert [held.owner for held in mine.inspect()] == [lease.owner]
        lease.check()
    with pytest.raises(LockUnavailable, match="another PASSWORD"):
        store_of(stranger).lock(f"{name}-free").acquire(timeout=WAIT_TIMEOUT)


def test_without_a_password_a_stranger_breaks_the_lock(client: Client, name: str) -> None:
    """The control."""
    mine, stranger = client(""), client("wrong")
    lease = acquired(store_of(mine).lock(name), timeout=5)
    assert [held.owner for held in stranger.inspect()] == [lease.owner]
    assert stranger.break_lock(name)
    until(lambda: lease.lost, "its holder learning that")


def test_another_password_takes_over_once_the_nodes_are_deleted(client: Client, name: str) -> None:
    """As docs/how-to/rotate-the-secrets.md says: until then both are refused to each other."""
    old, new = client("old"), client("new")
    with store_of(old).lock(name, timeout=5) as lease:
        assert_refused(new, name)
        lease.check()
    assert_refused(new, name)
    assert old.session is not None
    old.session.client.delete(old.options["PREFIX"], recursive=True)
    with store_of(new).lock(name, timeout=5) as later:
        assert later.token > lease.token
        assert_refused(old, name)


def test_first_password_excludes_clients_without_one(client: Client, name: str) -> None:
    """The nodes are open to both, until they are deleted."""
    old, new = client(""), client("new")
    with store_of(old).lock(name, timeout=5):
        assert not store_of(new).lock(name).acquire(timeout=0.2)
    with store_of(new).lock(name, timeout=5) as lease:
        with within(SLACK), pytest.raises(LockUnavailable, match="another PASSWORD"):
            store_of(old).lock(name).acquire(timeout=WAIT_TIMEOUT)
        until(lambda: len(old.queue(name)) == 1, "the refused one leaving the queue")
        lease.check()


def test_password_is_in_no_log(
    zookeeper: ZooKeeper, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(1, "kazoo")
    secret = uuid.uuid4().hex
    options = {"PREFIX": f"/{name}", "PASSWORD": secret}
    with caplog.at_level(logging.DEBUG), closing(connected(zookeeper.hosts, **options)) as backend:
        with store_of(backend).lock(name, timeout=5):
            pass
        assert secret not in repr((backend, backend.session, backend.session.client.auth_data))
    assert "Auth(" in caplog.text
    assert secret not in caplog.text
