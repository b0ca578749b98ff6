"""Each difference that docs/library/migrate.md states, on both sides and on real servers."""

import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import kazoo.exceptions
import pytest
import redis
from celery import Celery
from django.conf import settings
from django.core.cache import caches
from django.test import override_settings
from kazoo.client import KazooClient

from devservers import Redis, ZooKeeper
from devservers.faults.waiting import until
from locking import Lock, LockLost, LockTimeout, lock, locks
from locking.jobs.run_once import run_once
from tests.devservers.faults.interception import ExpireSession
from tests.docs.test_code_blocks import execute, python_blocks

PEERS = ("django-redis==7.0.0", "celery-once==3.0.1")


@pytest.fixture
def name() -> str:
    return f"report-{uuid.uuid4()}"


@pytest.fixture
def client() -> Iterator[redis.Redis]:
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        yield client


@pytest.fixture(scope="session")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install the libraries that nothing else needs; their dependencies are installed."""
    folder = tmp_path_factory.mktemp("peers")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    subprocess.run([*command, *PEERS], check=True, timeout=300)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


@pytest.mark.usefixtures("peers")
@pytest.mark.django_db(transaction=True)
def test_blocks_of_the_page_run(zookeeper: ZooKeeper) -> None:
    reports: list[str] = []
    with Redis() as server:
        conf = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        with override_settings(CACHES={"default": conf}):
            names = execute(
                python_blocks("docs/library/migrate.md"),
                {
                    "REDIS_URL": server.url,
                    "ZOOKEEPER_HOSTS": zookeeper.hosts,
                    "write_report": lambda: reports.append("written"),
                    "read_prices": lambda: "read",
                },
            )
            caches["default"].close()
    assert reports == ["written"] * 5, "redis-py, here, django-redis, kazoo, here"
    assert names["import_prices"]() == "read"
    with ThreadPoolExecutor(1) as pool, lock("import-prices"):
        assert pool.submit(names["import_prices"]).result(60) == "another import is running"


def from_another_thread(lock: Lock, **wait: object) -> bool:
    """Return whether another caller gets the lock."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_acquire_and_release, lock, wait).result(60)


def _acquire_and_release(lock: Lock, wait: dict[str, object]) -> bool:
    granted = lock.acquire(**wait)
    if granted:
        lock.release()
    return granted


class TestRedisPy:
    def test_old_and_new_lock_do_not_exclude_each_other(self, client, name) -> None:
        with client.lock(name, timeout=10), locks["redis"].lock(name, timeout=1) as lease:
            assert not lease.lost

    def test_only_the_old_lock_ends_during_the_work(self, client, name) -> None:
        with client.lock(name, timeout=0.2, raise_on_release_error=False) as old:
            until(lambda: not old.owned(), "the end of the old lock")
            assert client.lock(name, timeout=10).acquire(blocking=False), "two holders"
        lock = locks["redis"].lock(name, ttl=0.5)
        with lock as lease:
            first = lease.deadline
            until(lambda: lease.deadline > first + 0.5, "renewals beyond the first ttl")
            assert not from_another_thread(lock, blocking=False)
        fixed = locks["redis"].lock(name, ttl=0.2, renew=False)
        fixed.acquire()
        until(lambda: fixed.lease.lost, "the end of a lock that is not renewed")
        with pytest.raises(LockLost):
            fixed.release()

    def test_only_the_old_lock_of_a_crashed_holder_may_stay(self, client, name) -> None:
        assert client.lock(name).acquire()
        assert client.pttl(name) == -1
        with locks["redis"].lock(name):
            (held,) = (one for one in locks["redis"].inspect() if one.name == name)
            assert 0 < held.expires_in <= locks["redis"].ttl

    def test_errors_of_a_block_that_is_not_entered(self, client, name) -> None:
        assert client.lock(name, timeout=10).acquire()
        with (
            pytest.raises(redis.exceptions.LockError),
            client.lock(name, timeout=10, blocking_timeout=0.05),
        ):
            pass
        with locks["redis"].lock(name), ThreadPoolExecutor(1) as pool:
            waiter = locks["redis"].lock(name, timeout=0.05)
            with pytest.raises(LockTimeout):
                pool.submit(waiter.__enter__).result(60)

    def test_only_the_new_lock_is_reentrant(self, client, name) -> None:
        old = client.lock(name, timeout=10)
        assert [old.acquire(blocking=False) for _ in range(2)] == [True, False]
        new = locks["redis"].lock(name)
        assert [new.acquire(blocking=False) for _ in range(2)] == [True, True]
        strict = locks["redis"].lock(name, reentrant=False)
        assert not strict.acquire(blocking=False)
        new.release()
        new.release()

    def test_extend_adds_to_the_old_lease_and_replaces_the_new_one(self, client, name) -> None:
        old = client.lock(name, timeout=100)
        old.acquire()
        old.extend(50)
        assert client.pttl(name) > 100_000
        old.reacquire()
        assert 50_000 < client.pttl(name) <= 100_000
        new = locks["redis"].lock(name, ttl=100)
        with new as lease:
            new.extend(50)
            assert lease.remaining <= 50
            new.extend()
            assert 50 < lease.remaining <= 100

    def test_both_report_a_lost_lock_at_its_release(self, client, name) -> None:
        old = client.lock(name, timeout=10)
        old.acquire()
        client.delete(name)
        assert not old.owned()
        with pytest.raises(redis.exceptions.LockNotOwnedError):
            old.release()
        new = locks["redis"].lock(name)
        new.acquire()
        locks["redis"].break_lock(name)
        with pytest.raises(LockLost):
            new.release()

    def test_only_the_new_token_grows(self, client, name) -> None:
        old, tokens, news = client.lock(name, timeout=10), set(), []
        for _ in range(2):
            with old:
                tokens.add(type(old.local.token))
            with locks["redis"].lock(name) as lease:
                news.append(lease.token)
        assert tokens == {bytes}, "random bytes"
        assert news == sorted(set(news))

    def test_only_the_old_lock_may_be_released_by_another_thread(self, client, name) -> None:
        old = client.lock(name, timeout=10, thread_local=False)
        new = locks["redis"].lock(name)
        old.acquire()
        new.acquire()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(old.release).result(60)
            with pytest.raises(ValueError, match="not held by this thread"):
                pool.submit(new.release).result(60)
        new.release()


@pytest.mark.usefixtures("peers")
class TestDjangoRedis:
    def test_clearing_the_cache_frees_only_the_old_lock(self, client, name) -> None:
        with Redis() as server:
            conf = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
            with override_settings(CACHES={"default": conf}):
                cache = caches["default"]
                lock = cache.lock(name, timeout=10)
                assert isinstance(lock, redis.lock.Lock)
                with locks["redis"].lock(name) as lease:
                    lock.acquire()
                    assert not cache.lock(name, timeout=10).acquire(blocking=False)
                    cache.clear()
                    assert cache.lock(name, timeout=10).acquire(blocking=False), "two holders"
                    lease.extend(10)  # raises LockLost if the lock is gone
                cache.close()


@pytest.mark.usefixtures("peers")
class TestCeleryOnce:
    @pytest.fixture
    def app(self) -> Iterator[Celery]:
        app = Celery("migration", broker="memory://", set_as_current=False)
        app.conf.ONCE = {
            "backend": "celery_once.backends.Redis",
            "settings": {"url": settings.REDIS_URL, "default_timeout": 3600},
        }
        yield app
        app.close()

    def test_equal_messages_are_refused_only_by_the_old_task(self, app, client, name) -> None:
        from celery_once import AlreadyQueued, QueueOnce

        @app.task(base=QueueOnce, name=name)
        def old() -> None: ...

        old.delay()
        with pytest.raises(AlreadyQueued):
            old.delay()
        key = old.get_key()
        assert 3_000 < client.ttl(key) <= 3600, "stays if the worker is killed"
        client.delete(key)

        @app.task(name=f"{name}-new")
        @run_once
        def new() -> None: ...

        assert new.delay().id != new.delay().id, "two messages are two runs"

    @pytest.mark.django_db(transaction=True)
    def test_a_redelivered_message_runs_only_in_the_old_task(self, app, client, name) -> None:
        from celery_once import QueueOnce

        runs: list[str] = []

        @app.task(base=QueueOnce, name=name)
        def old() -> None:
            runs.append("old")

        @app.task(name=f"{name}-new")
        @run_once
        def new() -> None:
            runs.append("new")

        for task in (old, new):
            for _ in range(2):
                task.apply(task_id=name).get()
        assert runs == ["old", "old", "new"]


class TestKazoo:
    @pytest.fixture
    def kazoo_client(self, zookeeper: ZooKeeper) -> Iterator[KazooClient]:
        client = KazooClient(zookeeper.hosts, timeout=6)
        client.start(60)
        yield client
        client.stop()
        client.close()

    def test_a_wait_that_ends_raises_only_in_the_old_lock(self, kazoo_client, name) -> None:
        with kazoo_client.Lock(f"/old/{name}"), pytest.raises(kazoo.exceptions.LockTimeout):
            kazoo_client.Lock(f"/old/{name}").acquire(timeout=0.2)
        lock = locks["zookeeper"].lock(name)
        with lock:
            assert not from_another_thread(lock, timeout=0.2)

    def test_only_the_new_lock_notices_the_end_of_its_session(
        self, kazoo_client: KazooClient, zookeeper: ZooKeeper, name: str
    ) -> None:
        old, expired = kazoo_client.Lock(f"/old/{name}"), threading.Event()
        old.acquire()
        kazoo_client.add_listener(lambda state: expired.set() if state == "LOST" else None)
        ExpireSession(zookeeper.hosts, kazoo_client.client_id).inject()
        assert expired.wait(60)
        assert old.is_acquired
        successor = KazooClient(zookeeper.hosts)
        successor.start(60)
        try:
            assert successor.Lock(f"/old/{name}").acquire(timeout=60), "two holders"
            assert old.is_acquired
        finally:
            successor.stop()
            successor.close()

        new = locks["zookeeper"].lock(name)
        new.acquire()
        lease = new.lease
        ExpireSession(zookeeper.hosts, locks["zookeeper"].backend.session.client.client_id).inject()
        until(lambda: lease.lost, "the loss of the new lock", 60)
        with pytest.raises(LockLost):
            new.release()

    def test_only_the_new_lock_has_a_token(self, kazoo_client, name) -> None:
        with kazoo_client.Lock(f"/old/{name}") as old:
            assert not hasattr(old, "token")
        tokens = []
        for _ in range(2):
            with locks["zookeeper"].lock(name) as lease:
                tokens.append(lease.token)
        assert tokens == sorted(set(tokens))

    def test_contenders_are_listed_by_both(self, kazoo_client, name) -> None:
        lock = kazoo_client.Lock(f"/old/{name}", "host-1")
        with lock:
            assert lock.contenders() == ["host-1"]
        with locks["zookeeper"].lock(name) as lease:
            owners = [one.owner for one in locks["zookeeper"].inspect() if one.name == name]
            assert owners == [lease.owner]
