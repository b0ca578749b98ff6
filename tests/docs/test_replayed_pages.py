"""Pages whose blocks run in order: the tutorial, a purchase with curl, the move to this library."""

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path

import pytest
from django.core.cache import caches
from django.test import override_settings

from devservers import Redis, ZooKeeper
from locking import lock
from shop.models import Order, User
from tests import programs
from tests.docs.pages import BLOCKS, ROOT, without_values
from tests.docs.test_code_blocks import execute, python_blocks
from tests.shop.conftest import in_force
from tests.shop.making import a_sale

__all__ = ["in_force"]
TUTORIAL = [block for block in BLOCKS if block.page == "docs/tutorial/first-oversell.md"]
CURL, MIGRATION = "docs/how-to/buy-with-curl.md", "docs/library/migrate.md"
PEER = "django-redis==7.0.0"


@pytest.mark.parametrize("command", ["lab run", "lab scenario"])
def test_commands_print_what_the_tutorial_shows(command: str, tmp_path: Path) -> None:
    place = next(n for n, block in enumerate(TUTORIAL) if command in block.code)
    texts = takewhile(lambda block: block.language == "text", TUTORIAL[place + 1 :])
    shown = [one.code for one in texts if not one.code.startswith("buyer A  ")]  # a diagram
    assert shown
    command = [sys.executable, *shlex.split(TUTORIAL[place].code)[1:]]
    printed = programs.output(*command, cwd=ROOT, env={**os.environ, "SHOP_VAR": str(tmp_path)})
    for line in "".join(shown).splitlines():
        assert without_values(line) in without_values(printed), "a race has no fixed result"


def test_control_other_words_are_found() -> None:
    assert without_values("sold 200  of 50.") == without_values("sold 198 of\n50.")
    assert without_values("With Redis: exactly 50.") not in without_values("With Redis: 74 of 50.")


@pytest.mark.django_db(transaction=True)
def test_curl_buys_once(in_force, live_server, settings, tmp_path) -> None:
    settings.LOCK_TIMEOUT = settings.HARD_DEADLINE = 60.0
    User.objects.create_user("li", password=settings.DEMO_PASSWORD)
    sale = a_sale()
    code = "\n".join(block.code for block in BLOCKS if (block.page, block.language) == (CURL, "sh"))
    code = code.replace("SALE=headphones", f"SALE={sale.slug}")
    code = code.replace("SHOP=http://127.0.0.1:8000", f"SHOP={live_server.url}")
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    decoder, printed, left = json.JSONDecoder(), [], done.stdout.strip()
    while left:
        value, end = decoder.raw_decode(left)
        printed.append(value)
        left = left[end:].strip()
    sales, stock, signed_in, order = printed
    assert sale.slug in [one["slug"] for one in sales["sales"]]
    assert (stock["left"], signed_in) == (10, 302)
    assert order["number"] == Order.objects.get().number
    assert (order["status"], order["lock"]["backend"]) == ("pending", "process")


@pytest.mark.django_db(transaction=True)
def test_blocks_of_the_migration_run(
    zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a library that nothing else needs; its dependencies are installed."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*pip, PEER], check=True, timeout=300)
    monkeypatch.syspath_prepend(tmp_path)
    reports: list[str] = []
    with Redis() as server:
        conf = {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": server.url}
        given = {
            "REDIS_URL": server.url,
            "ZOOKEEPER_HOSTS": zookeeper.hosts,
            "write_report": lambda: reports.append("written"),
            "read_prices": lambda: "read",
        }
        with override_settings(CACHES={"default": conf}):
            names = execute(python_blocks(MIGRATION), given)
            caches["default"].close()
    assert reports == ["written"] * 5, "redis-py, here, django-redis, kazoo, here"
    assert names["import_prices"]() == "read"
    with ThreadPoolExecutor(1) as pool, lock("import-prices"):
        assert pool.submit(names["import_prices"]).result(60) == "another import is running"
