"""Pages whose blocks run in order, or are the modules of a project."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest

from devservers import Redis, ZooKeeper, reserve_port
from devservers.programs import required
from shop.models import Order, User
from tests import programs
from tests.docs.pages import BLOCKS, ROOT, without_values
from tests.docs.test_code_blocks import execute, python_blocks
from tests.shop.conftest import in_force
from tests.shop.making import a_sale

__all__ = ["in_force"]
TUTORIAL = [block for block in BLOCKS if block.page == "docs/tutorial/first-oversell.md"]
CURL, MIGRATION = "docs/how-to/buy-with-curl.md", "docs/library/migrate.md"
SETTINGS = """
SECRET_KEY = "documented"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "locking"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
LOCKS = {"redis": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://down:1"}}
USE_TZ = True
"""
"""Those of a project whose server does not exist."""


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
    required("curl")
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
def test_blocks_of_the_migration_run(zookeeper: ZooKeeper) -> None:
    reports: list[str] = []
    with Redis() as server:
        given = {
            "REDIS_URL": server.url,
            "ZOOKEEPER_HOSTS": zookeeper.hosts,
            "write_report": lambda: reports.append("written"),
        }
        execute(python_blocks(MIGRATION), given)
    assert reports == ["written"] * 4, "redis-py, here, kazoo, here"


def run_tests(folder: Path, files: dict[str, str]) -> str:
    """Write the files to an empty project and return what pytest prints there."""
    for name, code in {"settings.py": SETTINGS, **files}.items():
        (folder / name).write_text(code)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--ds", "settings"]
    env = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    return programs.output(*command, cwd=folder, env=env)


def test_tests_of_a_project_need_no_server(tmp_path: Path) -> None:
    conftest, invoices, tests, unittest = python_blocks("docs/library/test-your-code.md")
    files = {
        "conftest.py": conftest.code,
        "invoices.py": invoices.code,
        "test_invoices.py": f"{tests.code}\n\n{unittest.code}",
    }
    assert "4 passed" in run_tests(tmp_path, files)


def test_backend_of_the_page_passes_the_contract(tmp_path: Path) -> None:
    backend, suite, entry = python_blocks("docs/library/write-a-backend.md")
    required("etcd")
    port, mark = reserve_port()  # other tests do not take it while the mark is open
    assert "23790" in suite.code
    files = {
        "conftest.py": 'pytest_plugins = ["locking.testing.fixtures"]\n',
        "project_locks.py": backend.code,
        "test_project_locks.py": suite.code.replace("23790", str(port)),
    }
    with mark:
        printed = run_tests(tmp_path, files)
    assert re.search(r"\b2\d passed", printed), printed
    assert "project_locks.EtcdBackend" in entry.code
