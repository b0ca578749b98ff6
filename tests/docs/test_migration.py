"""The blocks of docs/library/migrate.md run."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from django.core.cache import caches
from django.test import override_settings

from devservers import Redis, ZooKeeper
from locking import lock
from tests.docs.test_code_blocks import execute, python_blocks

PEER = "django-redis==7.0.0"


@pytest.mark.django_db(transaction=True)
def test_blocks_of_the_page_run(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a library that nothing else needs; its dependencies are installed."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*pip, PEER], check=True, timeout=300)
    monkeypatch.syspath_prepend(tmp_path)
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
