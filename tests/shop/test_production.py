"""Production settings: clean under `check --deploy`, and no start with what only the demo may."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from shop import settings as demo
from shop.checks import check_production

ROOT = Path(__file__).resolve().parents[2]
GOOD = {
    "DJANGO_SETTINGS_MODULE": "shop.production",
    "SECRET_KEY": "0123456789abcdef" * 4,
    "GATEWAY_SECRET": "fedcba9876543210" * 4,
    "DATABASE_URL": "mysql://shop:x@nowhere.invalid:3306/shop",
    "ALLOWED_HOSTS": "shop.example",
}


def manage(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *command],
        cwd=ROOT,
        env={**os.environ, **GOOD, **changes},
        capture_output=True,
        text=True,
        check=False,
    )


def test_nothing_is_left_to_warn_of() -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr
    # The control: the same command finds what a trial without TLS leaves open.
    trial = manage("check", "--deploy", "--fail-level", "WARNING", HTTPS="0")
    assert trial.returncode == 1
    assert "security.W012" in trial.stderr


def test_a_redlock_master_that_comes_back_waits_for_the_longest_lease() -> None:
    code = "from django.conf import settings; print(settings.LOCKS['redlock'])"
    done = manage("shell", "-c", code, REDLOCK_URLS="redis://a,redis://b,redis://c")
    assert "'TTL': 6.0, 'OPTIONS': {'RESTART_DELAY': 6.0}" in done.stdout, done.stderr


def test_the_demos_secrets_do_not_start() -> None:
    """Any command: web, worker and beat set Django up in the same way."""
    changes = {"SECRET_KEY": demo.DEMO_SECRET, "GATEWAY_SECRET": "", "DATABASE_URL": "sqlite:///x"}
    done = manage("shell", "-c", "print('started')", **changes)
    assert done.returncode == 1
    assert "started" not in done.stdout
    for number in ("E001", "E002", "E004"):
        assert f"shop.{number}" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value", "number"),
    [
        ("SECRET_KEY", demo.DEMO_SECRET, "E001"),
        ("SECRET_KEY", "a" * 64, "E001"),
        ("GATEWAY_SECRET", GOOD["SECRET_KEY"], "E002"),
        ("DEBUG", True, "E003"),
        ("DATABASES", {"default": {"ENGINE": "django.db.backends.sqlite3"}}, "E004"),
        ("ALLOWED_HOSTS", ["shop.example", "*"], "E005"),
        ("SEED_PASSWORD", demo.DEMO_PASSWORD, "E006"),
    ],
)
def test_what_only_the_demo_may(setting: str, value: object, number: str) -> None:
    good = {
        "SECRET_KEY": GOOD["SECRET_KEY"],
        "GATEWAY_SECRET": GOOD["GATEWAY_SECRET"],
        "DEBUG": False,
        "DATABASES": {"default": {"ENGINE": "django.db.backends.mysql"}},
        "ALLOWED_HOSTS": ["shop.example"],
        "SEED_PASSWORD": "",
    }
    with patch("shop.checks.settings", SimpleNamespace(**good)):
        assert check_production() == []
    with patch("shop.checks.settings", SimpleNamespace(**{**good, setting: value})):
        assert [message.id for message in check_production()] == [f"shop.{number}"]
