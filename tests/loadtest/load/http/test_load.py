"""`lab http` against a private shop: gunicorn on the test's own database."""

import re
import socketserver
import threading
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.utils import timezone

from devservers.faults.proxy import Proxy
from inventory.models import Product, Stock
from loadtest.bench.purchase.web import WebServer
from loadtest.cli.http import demo_url
from loadtest.load.http import load, traffic
from loadtest.load.http.client import DISCONNECTED
from loadtest.load.http.load import HttpLoad
from loadtest.load.sale import OPEN_FOR, open_sale, remove_sale
from shop.models import Order, Sale, User
from shop.sales.queries import catalogue, current_sales, get_sale, past_sales
from tests.loadtest.lab import lab
from tests.shop.making import a_sale, put_in_force


@pytest.fixture
def shop(database_url, monkeypatch):
    put_in_force("redis")
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", str(settings.BASE_DIR))
    with WebServer(1) as web:
        yield web.url


def small_load(url, **size):
    where = {"host": "127.0.0.1", "port": urlsplit(url).port}
    return HttpLoad(**where, **size, attempts=40, processes=1, connections=2)


def test_loads_of_the_running_demo_end_with_an_audit_and_are_removed(shop, settings, tmp_path):
    """The accounts of their buyers, too, but not those of customers with such names."""
    others = [User.objects.create(username=name) for name in ("lab-http-0", "lab-http-fan")]
    sale = a_sale()
    Order.objects.create(
        sale=sale, customer=others[0], quantity=1, unit_price=1, key="k", pay_by=timezone.now()
    )
    settings.VAR = tmp_path
    assert demo_url() is None
    (tmp_path / "demo.url").write_text(f"{shop}\n")
    options = ("--attempts=90", "--stock=10", "--buyers=30", "--connections=5")
    report, code = lab("http", *options)
    assert (code, report["verdict"]) == (0, "ok"), report
    assert (report["orders"], report["winners"], report["attempts"]) == (10, 10, 90)
    assert report["settings"]["port"] == urlsplit(shop).port
    assert report["answers"]["won"]["count"] >= 10
    assert report["answers"]["sold_out"]["p99_ms"] > 0
    assert report["driver"]["peak_mb"] > 0  # the driver is this process here: no bound for it
    missed, code = lab("http", *options, "--min-per-second=1000000")
    assert (code, missed["verdict"], missed["orders"]) == (1, "slow", 10)
    # Fewer than processes, and than units.
    for few in ("--attempts=1", "--buyers=1", "--attempts=1 --buyers=2 --stock=2"):
        report, code = lab("http", f"--url={shop}", "--stock=1", *few.split())
        assert (code, report["orders"], report["winners"]) == (0, 1, 1), few
    # All eight buyers win with their first attempts: the other 32 are never sent.
    asked = small_load(shop, stock=10, buyers=8)
    steps: list[object] = []
    for _ in range(5):  # a busy shop refuses some, who then try again
        steps.clear()
        sent = load.run_http_load(asked, lambda *step: steps.append(step))["attempts"]
        if sent < 40:
            break
    assert 8 <= sent < 40
    assert steps[-1] == (load.SENDING, sent, sent)
    assert (load.SENDING, 0, 40) in steps
    assert [*Sale.objects.all()] == [sale]
    assert [*Product.objects.all()] == [sale.product]
    assert (Order.objects.count(), Stock.objects.count()) == (1, 1)
    assert {*User.objects.filter(username__startswith="lab-http")} == {*others}
    (tmp_path / "demo.url").write_text("http://127.0.0.1:1/\n")
    assert demo_url() is None, "it was killed and could not remove its file"


def test_load_may_end_while_another_one_begins(shop):
    """Each has accounts and a product of its own."""
    asked = small_load(shop, stock=5, buyers=10)
    others, products = [], set()

    def meanwhile(what, done, total):
        if what == "signing in" and not others:
            others.append("under way")
            others[0] = load.run_http_load(asked, lambda *_: products.add(Product.objects.count()))

    report = load.run_http_load(asked, meanwhile)
    assert [(one["verdict"], one["orders"]) for one in (report, *others)] == [("ok", 5)] * 2
    assert products == {2}
    assert not User.objects.exists()


def test_order_whose_reply_was_lost_is_no_breach(shop):
    """Its buyer was told nothing."""
    with Proxy(urlsplit(shop).port) as proxy:
        proxy.losing = re.compile(b"POST /sales/")
        options = ("--attempts=1", "--buyers=1", "--stock=1")
        report, code = lab("http", f"--url=http://{proxy.url}/", *options)
    assert (report["answers"][DISCONNECTED]["count"], report["winners"]) == (1, 0)
    assert (code, report["orders"]) == (0, 1), report["why"]


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


def test_traffic_that_fails_leaves_no_sale_and_every_customer(db):
    """Also one with such a name, who has ordered nothing yet."""
    customer = User.objects.create(username="lab-traffic-0")
    with pytest.raises(ConnectionRefusedError):
        traffic.send_traffic("http://127.0.0.1:1/")
    assert [*User.objects.all()] == [customer]
    assert not Sale.objects.exists()


def test_traffic_whose_buyers_cannot_sign_in_leaves_no_sale(db, monkeypatch):
    def fail(*_):
        raise DatabaseError("too many connections")

    monkeypatch.setattr(traffic, "sign_in", fail)
    with pytest.raises(DatabaseError, match="too many connections"):
        traffic.send_traffic("http://127.0.0.1:1/")
    assert not Sale.objects.exists()


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
        (["--max-p99-ms=nan"], "--max-p99-ms must be"),
        (["--min-per-second=-1"], "--min-per-second must be"),
        (["--url=http://127.0.0.1:1/", "--stock=100000", "--attempts=300000"], "No shop responds"),
    ],
)
def test_bad_arguments_change_nothing(words, message, db):
    with pytest.raises(CommandError, match=message) as refused:
        call_command("lab", "http", *words)
    assert refused.value.returncode == 2
    assert not Sale.objects.exists()


@pytest.mark.parametrize(
    ("greeting", "message", "code"),
    [
        ("SSH-2.0-OpenSSH\r\n", "No shop responds at {address}", 2),
        ("HTTP/1.1 200 OK\r\n\r\n", "The load on {address} ended: TimeoutError", 1),
    ],
)
def test_server_that_does_not_respond_is_named_and_no_sale_stays(
    greeting, message, code, transactional_db, monkeypatch
):
    """Neither at first nor under load."""
    monkeypatch.setattr("loadtest.load.http.client.RESPONSE_TIMEOUT", 0.5)

    class Greeting(socketserver.StreamRequestHandler):
        def handle(self):
            self.wfile.write(greeting.encode())
            self.rfile.readline()

    with socketserver.TCPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        with pytest.raises(CommandError, match=message.format(address=address)) as refused:
            call_command("lab", "http", f"--url={address}/", "--buyers=4", "--processes=1")
    assert refused.value.returncode == code
    assert not Sale.objects.exists()
