"""`manage.py lab bench purchase`: its driver, its arithmetic, and a short run of all of it."""

import io
import json
import socket
import threading
from decimal import Decimal

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone

from devservers import HOST
from inventory.models import Product
from loadtest.bench.purchase import report, rounds
from loadtest.load.http_client import drive
from shop.models import Order, User


def serve(listener, said):
    """Say what is scripted for each connection, a part for each request."""
    for parts in said:
        connection, _ = listener.accept()
        with connection:
            for part in parts:
                connection.recv(65536)
                connection.sendall(part[:20])
                connection.sendall(part[20:])


@pytest.fixture
def told():
    """What the driver makes of scripted answers, one connection after the other."""

    def tell(*said, seconds=10.0):
        with socket.create_server((HOST, 0)) as listener:
            server = threading.Thread(target=serve, args=(listener, said))
            server.start()
            try:
                count = sum(map(len, said))
                port = listener.getsockname()[1]
                return drive(port, [b"x"] * count, connections=1, seconds=seconds)
            finally:
                server.join()

    return tell


def http(status, body=b"", head=b""):
    return b"HTTP/1.1 %d Any\r\n%sContent-Length: %d\r\n\r\n%s" % (status, head, len(body), body)


def test_each_kind_of_answer(told):
    refusal = b'{"error": "sold_out", "title": "Sold out"}'
    heard = told([http(201, b"{}"), http(303), http(409, refusal), http(500, b"oh")])
    assert [answer.kind for answer in heard.answers] == ["ok", "ok", "sold_out", "500"]
    assert heard.began <= heard.answers[0].sent <= heard.answers[0].heard
    assert heard.ended == heard.answers[-1].heard


def test_a_connection_that_the_server_closes_is_opened_again(told):
    last = http(200, head=b"Connection: close\r\n")
    assert len(told([last], [http(200)]).answers) == 2


@pytest.mark.parametrize("said", [http(200)[:30], b"HTTP/1.1 200 OK\r\n\r\n"])
def test_half_an_answer_is_none(told, said):
    with pytest.raises(ConnectionError):
        told([said])


def test_nothing_is_sent_after_the_time(told):
    assert len(told([http(200)], seconds=0).answers) == 1


def measured_rounds(*rates):
    one = {"p99_ms": 10.0, "queries": 0.0, "redis_trips": 1.0, "answers": {}, "breaches": []}
    return [one | {"per_second": rate} for rate in rates]


@pytest.mark.parametrize(("rates", "met"), [((300, 200, 250), True), ((240, 500, 90), False)])
def test_a_ratio_is_the_median_of_the_rounds(rates, met):
    measured = {"direct": measured_rounds(*rates), "reference": measured_rounds(100, 50, 100)}
    found = {target: met for target, _value, met in report._targets(measured)}
    assert found["direct: x reference >= 2.5"] is met
    assert found["SQLite: p99 ms <= 250"] is None


def test_broken_books_and_missing_stores_are_told():
    line = {"line": "direct", "breaches": ["oversold: 3 promised of 2"]}
    broken = {"lines": [line], "missing": {"redis": "not there"}, "versions": {}}
    assert report.remarks(broken) == [
        "direct: oversold: 3 promised of 2",
        "redis: not there",
    ]
    assert not report.is_sound({"lines": [line], "missing": {}})
    assert not report.is_sound({"lines": [], "missing": {"redis": "not there"}})


@pytest.mark.django_db
@pytest.mark.parametrize("line", [rounds.EMBEDDED, rounds.REFERENCE])
def test_the_books_of_a_round(line, monkeypatch):
    monkeypatch.setitem(rounds.LINES, connection.vendor, (line,))
    buyer = User.objects.create(username="buyer")
    product = Product.objects.create(slug="bench", name="Bench", price=Decimal(1))
    sale = rounds._sale(product, line, 1, [buyer, buyer, buyer])
    assert list(rounds._breaches(line, sale, 0)) == []
    Order.objects.create(
        customer=buyer, sale=sale, quantity=1, unit_price=1, key="x", pay_by=timezone.now()
    )
    broken = " ".join(rounds._breaches(line, sale, 0))
    assert "3 initial != 3 available + 1 held" in broken
    assert "1 orders, 0 acknowledged" in broken


@pytest.mark.parametrize("wrong", ["--rounds=0", "--seconds=0", "--buyers=0", "--seconds=nan"])
def test_bad_arguments(wrong):
    with pytest.raises(CommandError):
        call_command("lab", "bench", "purchase", wrong)


def test_a_short_benchmark():
    out = io.StringIO()
    options = ["--rounds=1", "--seconds=0.5", "--burst=0.5", "--buyers=60", "--attempts=400"]
    call_command("lab", "bench", "purchase", *options, "--json", stdout=out)
    found = json.loads(out.getvalue())
    lines = {line["line"]: line for line in found["lines"]}
    assert len(lines) == 16
    assert not any(line["breaches"] for line in lines.values())
    assert set(lines["reference"]["answers"]) == {"ok"}
    assert lines["direct"]["answers"]["ok"] > 0
    assert set(lines["sold out"]["answers"]) == {"sold_out"}
    assert set(lines["empty view"]["answers"]) == {"ok"}
    assert set(lines["queued"]["answers"]) == {"ok"}
    assert lines["queued, granian"]["server"].startswith("granian")
    for how in ("naive", "fenced", "conditional", "queued"):
        (rush,) = lines[f"attempts, {how}"]["rounds"]
        assert (rush["orders"], rush["pieces"], sum(rush["answers"].values())) == (4, 4, 400)
    assert lines["queued, orders written and seen"]["answers"]["seen"] > 0
    assert lines["SQLite"]["store"] == "sqlite"
    assert all(target["met"] is not None for target in found["targets"])


def test_the_sums_of_so_many_machines():
    line = {"to_reference": 1.0, "p99_ms": 1.0, "per_second": 7.0, "redis_cpu_us": 50.0}
    lines = [
        {**line, "line": name, "worker_cpu_ms": cpu}
        for name, cpu in (("direct", 1.0), ("queued", 0.8), ("sold out", 0.5))
    ]
    found = {"lines": lines, "settings": {"rounds": 3}, "versions": {"mariadb": {"cores": 2}}}
    written = report.markdown(found)
    assert "| direct | 7 | 1.00 | 1.0 | 1.00 | 50 |" in written
    assert "| queued | 25,000 | 250,000 | 2,500,000 | 20,000 |" in written
    assert "| sold out | 40,000 | 400,000 | 4,000,000 | 20,000 |" in written
