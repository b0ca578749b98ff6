"""The how-tos of the library whose blocks are modules of a project: pytest runs them there."""

import os
import re
import sys
from pathlib import Path

from devservers import reserve_port
from devservers.programs import required
from tests import programs
from tests.docs.pages import ROOT
from tests.docs.test_code_blocks import python_blocks

SETTINGS = """
SECRET_KEY = "documented"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "locking"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
LOCKS = {"redis": {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": "redis://down:1"}}
USE_TZ = True
"""
"""Those of a project whose server does not exist."""


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
