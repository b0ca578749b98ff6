"""Private real servers for the whole session, one set per pytest process.

The addresses are chosen here, before Django reads its settings; a server starts when the first
test asks for its fixture. A test that kills or pauses a server starts one of its own.
"""

import logging
import os
import shutil
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from importlib.util import find_spec
from typing import Any

import django
import pytest
from django.core.management.color import no_style
from django.db import connection
from django.test import TransactionTestCase

from devservers import MariaDb, PostgreSql, Redis, ServerMissing, ZooKeeper, start_all, stop_all
from devservers.faults.waiting import WAIT_TIMEOUT
from devservers.programs import DEBIAN_PACKAGES
from devservers.temporary import temporary_directory
from tests.devservers.redis_groups import RedisCluster, SentinelRedis
from tests.fault_rows import (  # noqa: F401 - hooks
    pytest_addoption,
    pytest_itemcollected,
    pytest_runtest_call,
    pytest_runtest_logreport,
    pytest_terminal_summary,
)

LONG_FILES = (
    "test_stack.py",
    "test_demo.py",
    "test_library_tutorial.py",
    "test_replayed_pages.py",
)
"""Files with few tests that take long, because they start all services or a new environment."""

HAS_SHOP = find_spec("shop") is not None
"""False where `make test-library` tests the library alone."""
_CI = os.environ.get("CI") == "true"
_STORE = os.environ.get("TEST_STORE", "sqlite")
_VENDOR = {"mariadb": "mysql"}.get(_STORE, _STORE)
_var = temporary_directory("tests")
_redis = Redis()
_redis_five = [Redis() for _ in range(5)]
# The default since MariaDB 11.6.2; Debian's has it, too.
_mariadb = MariaDb(config=["--innodb-snapshot-isolation=ON"])
_postgresql = PostgreSql(config=["--fsync=off"]) if _STORE == "postgresql" else None
_database = {"sqlite": None, "mariadb": _mariadb, "postgresql": _postgresql}[_STORE]
_zookeeper = ZooKeeper(nodes=3)

# Never the developer's own stores, whatever the environment says.
os.environ.update(
    DJANGO_SETTINGS_MODULE="shop.settings.lab" if HAS_SHOP else "tests.locking.settings",
    SHOP_VAR=str(_var),
    DATABASE_URL=_database.url if _database else f"sqlite:///{_var / 'db.sqlite3'}",
    REDIS_URL=_redis.url,
    QUEUE_REDIS_URL="",
    LOCK_REDIS_URL="",
    CACHE_URL="",  # the same server, also in processes with another REDIS_URL
    CELERY_BROKER_URL=_redis.url,
    REDLOCK_URLS=",".join(server.url for server in _redis_five),
    ZOOKEEPER_HOSTS=_zookeeper.hosts,
    ZOOKEEPER_PASSWORD="",
)
(_var / "static").mkdir()  # WhiteNoise warns when nothing was ever collected.
django.setup()

KEPT_TABLES = {"django_content_type", "auth_permission"}
"""Those that `migrate` fills and no test changes."""


def _delete_rows(_test: TransactionTestCase) -> None:
    """Empty the tables after a transactional test, except KEPT_TABLES.

    Django would empty these as well and fill them again, which takes longer than most tests.
    """
    names = connection.introspection.django_table_names(only_existing=True, include_views=False)
    emptied = sorted({*names} - KEPT_TABLES)
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), emptied))


TransactionTestCase._fixture_teardown = _delete_rows  # type: ignore[attr-defined]  # noqa: SLF001


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Workers inherit our environment; unnamed, the settings wait for their own addresses."""
    del os.environ["DJANGO_SETTINGS_MODULE"]


def pytest_unconfigure() -> None:
    # Sessions that outlive their server would report it to the closed stderr of the test run.
    logging.disable()
    stop_all({_redis, *_redis_five, _mariadb, *_zookeeper.nodes, *filter(None, [_database])})
    shutil.rmtree(_var, ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Deselect the tests of other databases, and run long files first.

    Workers take a file at a time, in this order, so that no long file is left at the end.
    """
    others = []
    for item in items:
        if only := item.get_closest_marker("only"):
            item.add_marker(pytest.mark.stores)
            if _VENDOR not in only.args:
                others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]
    yield
    sizes = Counter(item.path for item in items)
    first = {item.path for item in items if item.get_closest_marker("long")}
    first |= {item.path for item in items if item.path.name in LONG_FILES}
    items.sort(key=lambda item: (item.path not in first, -sizes[item.path]))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, Any, Any]:
    """Skip a test whose program is not installed, with the command to install it; fail in CI."""
    try:
        return (yield)
    except (ServerMissing, FileNotFoundError) as error:
        missing = error
        if isinstance(error, FileNotFoundError) and error.filename in DEBIAN_PACKAGES:
            missing = ServerMissing(error.filename)  # a test that starts the program by its name
        if _CI or not isinstance(missing, ServerMissing):
            raise
        pytest.skip(str(missing))


pytest_pyfunc_call = pytest_runtest_setup


@pytest.fixture(scope="session", autouse=True)
def redis_server() -> Redis:
    """Return the Redis of the settings, for cache, broker and locks; it always runs."""
    _redis.start()
    return _redis


@pytest.fixture(autouse=True)
def _clear_caches() -> Iterator[None]:
    """Clear the caches of the process, and let no read of the policy outlast its test.

    Primary keys repeat in other tests. A read creates the policy's row if it does not exist.
    """
    from django.utils import translation

    from locking import metrics, policy
    from locking.policy import active

    translation.deactivate()  # a test client leaves the language of its last page
    metrics.kinds.clear()
    policy.invalidate()
    if HAS_SHOP:
        _clear_caches_of_shop()
    yield
    active.reader.thread.submit(lambda: None).result(WAIT_TIMEOUT)


def _clear_caches_of_shop() -> None:
    from shop.platform import rate_limits, shared_pages
    from shop.purchase import admission, tokens
    from shop.sales import waiting_slots
    from waiting_room import gate, service

    admission.clear()
    tokens.clear()
    waiting_slots.clear()
    shared_pages.clear()
    rate_limits.clear()
    service.clear()
    gate.clear()


@pytest.fixture(autouse=True)
def render_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Render each page for each request; tests/shop/web/test_shared_pages.py shares them."""
    if HAS_SHOP:
        from shop.platform import shared_pages

        for seconds in ("FRESH", "MAX_AGE"):
            monkeypatch.setattr(shared_pages, seconds, 0.0)


@pytest.fixture(autouse=True)
def _publish_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no thread that outlives its test and sends commands that other tests count."""
    if HAS_SHOP:
        from shop.operations import rates

        monkeypatch.setattr(rates, "start", lambda role: None)


@pytest.fixture(scope="session")
def redis_five() -> list[Redis]:
    """Return the five independent masters of the `redlock` backend."""
    start_all(_redis_five)
    return _redis_five


@pytest.fixture(scope="session")
def redis_sentinel() -> Iterator[SentinelRedis]:
    """Return a master, its replica and three Sentinels, for tests without a failover."""
    with SentinelRedis() as servers:
        servers.disable_failover()  # else a busy machine causes one
        yield servers


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Return a Cluster of six nodes, for tests without a failover."""
    with RedisCluster() as servers:
        servers.disable_failover()  # else a busy machine causes one
        yield servers


@pytest.fixture(scope="session")
def mariadb() -> MariaDb:
    """Return the database of the shop if TEST_STORE=mariadb, otherwise another one."""
    _mariadb.start()
    return _mariadb


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgreSql]:
    """Return a PostgreSQL beside the shop's database, for the locks on it."""
    config = ["--fsync=off", "--shared_preload_libraries=pg_stat_statements"]
    with PostgreSql(config=config) as server:
        yield server


@pytest.fixture(scope="session")
def zookeeper() -> ZooKeeper:
    """Return the ensemble of three of the `zookeeper` backend."""
    _zookeeper.start()
    return _zookeeper


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Make the test database one that other processes can open: a file, or a server's."""
    if _database:
        _database.start()
        return
    connection.settings_dict["TEST"]["NAME"] = str(_var / "test.sqlite3")


@pytest.fixture(scope="session")
def django_db_keepdb() -> bool:
    """Keep the test database until its server ends: PostgreSQL drops none that is in use."""
    return _STORE == "postgresql"


@pytest.fixture(scope="session")
def test_database_url(django_db_setup: None) -> str:
    """Return DATABASE_URL of the test database, for processes that outlive a test."""
    name = connection.settings_dict["NAME"]
    return _database.url.replace("/shop", f"/{name}") if _database else f"sqlite:///{name}"


@pytest.fixture
def database_url(transactional_db: None, test_database_url: str) -> str:
    """Return DATABASE_URL for processes of one test; they see its committed rows."""
    return test_database_url


@pytest.fixture(scope="session")
def idle_processes() -> Iterator[list[Any]]:
    """Yield the processes of `processes` that the next test may have."""
    idle: list[Any] = []
    yield idle
    for process in idle:
        process.close()


@pytest.fixture
def processes(database_url: str, idle_processes: list[Any]) -> Iterator[Callable[[int], list[Any]]]:
    """`processes(3)`: three `RaceWorker` processes of the shop, on the test's own database."""
    from tests.shop.races.race_worker import RaceWorker

    mine: list[RaceWorker] = []

    def give(number: int) -> list[RaceWorker]:
        missing = number - len(idle_processes)
        idle_processes.extend(RaceWorker(database_url) for _ in range(missing))
        given = [idle_processes.pop() for _ in range(number)]
        mine.extend(given)
        return given

    yield give
    for process in mine:
        # One that is still at work, as after a failed test, is of no use to the next.
        if process.is_alive and process.is_done:
            idle_processes.append(process)
        else:
            process.close()
