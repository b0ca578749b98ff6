"""Many sign-ins at once: a real gunicorn keeps serving purchases and probes.

`pytest -s` prints the waits, with the limit of `shop.platform.passwords` and without it.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from loadtest.bench.purchase.web import WebServer
from loadtest.load.http.buyers import Buyer, signed_in
from loadtest.resilience.shop import Reply, request
from tests.shop.making import a_customer, a_sale, put_in_force

ROOT = Path(__file__).resolve().parents[3]
SIGN_INS = int(os.environ.get("SIGN_INS", "50"))
SECONDS = 2.0
"""The sign-ins arrive within this time."""
WITHOUT = {"MAX_HASHES": "1000", "WEB_THREADS": "1000"}
"""The server has eight threads all the same; only the limit is told of a thousand."""
LIVEZ = b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def sign_in_of(buyer: Buyer) -> bytes:
    """Return a sign-in with a wrong password, which is hashed like a right one."""
    body = f"username=unknown&password=wrong&csrfmiddlewaretoken={buyer.csrf}"
    return buyer.post("/accounts/sign-in/", body)


def repeat(act: Callable[[], Reply], until: float) -> list[Reply]:
    replies = []
    while time.monotonic() < until:
        replies.append(act())
        time.sleep(0.02)
    return replies


def under_load(port: int) -> tuple[float, float, Counter[int]]:
    """Return the longest wait for /livez and for a purchase, and the statuses of the sign-ins."""
    sale = a_sale(stock=10_000)
    visitor, *buyers = signed_in([a_customer() for _ in range(200)])
    forms = (buyer.post(f"{sale.get_absolute_url()}buy/", buyer.form(sale)) for buyer in buyers)
    sign_in = sign_in_of(visitor)
    began = time.monotonic()

    def send(number: int) -> Reply:
        time.sleep(max(0.0, began + number * SECONDS / SIGN_INS - time.monotonic()))
        return request(port, sign_in)

    with ThreadPoolExecutor(SIGN_INS + 2) as threads:
        probes = threads.submit(repeat, lambda: request(port, LIVEZ), began + SECONDS)
        bought = threads.submit(repeat, lambda: request(port, next(forms)), began + SECONDS)
        statuses = Counter(reply.status for reply in threads.map(send, range(SIGN_INS)))
    assert 201 in {reply.status for reply in bought.result()}
    longest = [max(reply.seconds for reply in each.result()) for each in (probes, bought)]
    return longest[0], longest[1], statuses


@pytest.mark.django_db(transaction=True)
def test_sign_ins_do_not_stop_purchases_and_probes(database_url, monkeypatch) -> None:
    put_in_force("redis")
    limits = ("SIGN_IN_LIMIT", "SIGN_IN_FAILURE_LIMIT", "SIGN_IN_NAME_LIMIT")
    environment = dict.fromkeys(limits, "100000/minute")
    environment |= {"DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)}
    results = {}
    for case, more in (("without the limit", WITHOUT), ("with the limit", {})):
        for name, value in {**environment, **more}.items():
            monkeypatch.setenv(name, value)
        with WebServer(1, config=["--threads", "8"]) as web:
            results[case] = livez, purchase, statuses = under_load(web.port)
        for name in WITHOUT:
            monkeypatch.delenv(name, raising=False)
        print(  # noqa: T201 - the measured figure
            f"\n{SIGN_INS} sign-ins in {SECONDS:g} s {case}: /livez waits at most {livez:.2f} s, "
            f"a purchase {purchase:.2f} s; statuses {dict(statuses)}"
        )
    control, limited = results.values()
    assert limited[0] < control[0]
    assert limited[1] < control[1]
    assert limited[2][503] > 0 == control[2][503]
