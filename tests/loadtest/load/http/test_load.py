"""`lab http` against a private shop: gunicorn on the test's own database."""

from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.utils import timezone

from inventory.models import Product, Stock
from loadtest.bench.purchase.web import WebServer
from loadtest.cli.http import demo_url
from loadtest.load.http import load
from loadtest.load.http.load import HttpLoad
from loadtest.load.sale import OPEN_FOR, open_sale, remove_sale
from shop.models import Order, Sale, User
from shop.sales.queries import catalogue, current_sales, get_sale, past_sales
from tests.loadtest.lab import lab
from tests.shop.making import a_sale, put_in_force

ASKED = {"host": "127.0.0.1", "port": 1, "attempts": 90, "stock": 10, "buyers": 30}


@pytest.fixture
def shop(database_url, monkeypatch):
    put_in_force("redis")
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", str(settings.BASE_DIR))
    with WebServer(1) as web:
        yield web.url


def test_load_ends_with_an_audit(shop):
    options = ("--attempts=90", "--stock=10", "--buyers=30", "--connections=5")
    report, code = lab("http", f"--url={shop}", *options)
    assert (code, report["verdict"]) == (0, "ok"), report
    assert (report["orders"], report["winners"], report["attempts"]) == (10, 10, 90)
    assert report["answers"]["won"]["count"] >= 10
    assert report["answers"]["sold_out"]["p99_ms"] > 0
    assert report["driver"]["peak_mb"] > 0  # the driver is this process here: no bound for it
    assert not Sale.objects.exists()
    assert not Order.objects.exists()
    assert not Product.objects.exists()
    assert not Stock.objects.exists()
    missed, code = lab("http", f"--url={shop}", *options, "--min-per-second=1000000")
    assert (code, missed["verdict"], missed["orders"]) == (1, "slow", 10)


def test_progress_ends_complete_if_fewer_attempts_are_needed(shop):
    """All eight buyers win with their first attempts: the other 32 are never sent."""
    steps = []
    port = urlsplit(shop).port
    asked = {**ASKED, "port": port, "attempts": 40, "buyers": 8}
    report = load.run_http_load(
        HttpLoad(**asked, processes=1, connections=2), lambda *step: steps.append(step)
    )
    sent = report["attempts"]
    assert 8 <= sent < 40
    assert steps[-1] == (load.SENDING, sent, sent)
    assert (load.SENDING, 0, 40) in steps


def test_running_demo_is_found(shop, settings, tmp_path):
    settings.VAR = tmp_path
    assert demo_url() is None
    (tmp_path / "demo.url").write_text(f"{shop}\n")
    assert demo_url() == shop
    report, code = lab("http", "--attempts=12", "--stock=4", "--buyers=6", "--connections=2")
    assert (code, report["settings"]["port"]) == (0, urlsplit(shop).port)
    (tmp_path / "demo.url").write_text("http://127.0.0.1:1/\n")
    assert demo_url() is None  # it was killed and could not remove its file


@pytest.mark.parametrize("few", [["--attempts=1"], ["--buyers=1"]])
def test_fewer_buyers_than_processes(shop, few):
    report, code = lab("http", f"--url={shop}", "--stock=1", *few)
    assert (code, report["orders"], report["winners"]) == (0, 1, 1)


def test_accounts_of_buyers_are_deleted_but_not_those_of_customers(shop):
    others = [User.objects.create(username=name) for name in ("lab-http-0", "lab-http-fan")]
    sale = a_sale()
    Order.objects.create(
        sale=sale, customer=others[0], quantity=1, unit_price=1, key="k", pay_by=timezone.now()
    )
    lab("http", f"--url={shop}", "--attempts=12", "--stock=4", "--buyers=6", "--connections=2")
    assert {*User.objects.filter(username__startswith="lab-http")} == {*others}


def test_visitors_do_not_find_the_sale_of_a_load_test(db):
    listed = a_sale()
    sale = open_sale("lab-http-1", 5, product="lab-http", is_listed=False)
    assert get_sale(slug=sale.slug) == sale
    now = timezone.now()
    assert [*current_sales(now=now)] == [listed]
    assert [*past_sales(now=now + OPEN_FOR)] == [listed]
    assert [*catalogue()] == [listed.product]
    remove_sale(sale)
    assert [*Product.objects.all()] == [listed.product]


OTHER_MACHINE = "url|not this machine"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--url=http://example.com/"], OTHER_MACHINE),
        (["--url=https://127.0.0.1/"], OTHER_MACHINE),
        (["--url=ftp://x"], OTHER_MACHINE),
        (["--url=nonsense"], OTHER_MACHINE),
        (["--url=http://[1/"], OTHER_MACHINE),
        (["--url=http://127.0.0.1/shop/"], OTHER_MACHINE),
        (["--url=http://example.com/", "--really=example.org"], "add --really example\\.com"),
        (["--url=http://127.0.0.1:1/"], "No shop responds"),
        (["--connections=0"], "connections"),
    ],
)
def test_bad_arguments_change_nothing(words, message, transactional_db):
    with pytest.raises(CommandError, match=message) as refused:
        call_command("lab", "http", *words)
    assert refused.value.returncode == 2
    assert not Sale.objects.exists()
