"""Every worker of a real gunicorn refuses a revoked purchase token within one second.

`pytest -s` prints how long after the change the last token was accepted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import HTTPConnection
from itertools import count
from pathlib import Path

import pytest
from django.test import Client

from devservers import HOST
from devservers.faults.waiting import until
from loadtest.bench.purchase.web import WebServer
from loadtest.load.http.buyers import Buyer, signed_in
from shop.models import Sale, TokenRevocation, User
from tests.shop.making import a_customer, a_sale, put_in_force

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

ROOT = Path(__file__).resolve().parents[3]
CUSTOMERS, WORKERS = 50, 2
BATCH = 5
"""Customers whose tokens are tried at once."""
REFUSED = {401, 403}
PATIENCE = 30.0
PROMISE = 1.0
"""Seconds."""


def worker_of(connection: HTTPConnection, workers: list[int]) -> int:
    """Return the process that accepted a connection, by its socket."""
    ends = [f":{connection.port:04X}", f":{connection.sock.getsockname()[1]:04X}"]
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    # The kernel lists rows bucket by bucket: one that moves meanwhile is listed twice.
    found = {f"socket:[{row[9]}]" for row in rows if [row[1][8:], row[2][8:]] == ends}
    for pid in workers:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.path.basename(os.path.realpath(link)) in found:
                return pid
    return 0  # not accepted yet


class Web:
    """A gunicorn, and one connection to each of its workers."""

    def __init__(self, server: WebServer) -> None:
        self.port = server.port
        self.workers = server.children()
        self._connections: dict[int, HTTPConnection] = {}
        self._numbers = count()

    def buy(self, worker: int, buyer: Buyer, sale: Sale) -> int:
        """Buy with the token alone: without a CSRF token the view refuses. Return the status."""
        form = buyer.form(sale, key=f"key-{next(self._numbers)}").split("&")
        body = "&".join(field for field in form if "csrf" not in field)
        return self._post(worker, f"/sales/{sale.slug}/buy/", buyer, body)

    def sign_out(self, buyer: Buyer) -> None:
        body = f"csrfmiddlewaretoken={buyer.csrf}"
        assert self._post(self.workers[0], "/accounts/sign-out/", buyer, body) == 302

    def _post(self, worker: int, path: str, buyer: Buyer, body: str) -> int:
        headers = {
            "Cookie": buyer.cookies,
            "Accept": "application/json",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        while True:
            connection = self._connections.get(worker) or self._connect(worker)
            try:
                connection.request("POST", path, body, headers)
                response = connection.getresponse()
                response.read()
                return response.status
            except OSError:  # closed while it was idle; the key makes a second attempt safe
                self._connections.pop(worker).close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def _connect(self, worker: int) -> HTTPConnection:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            connection = HTTPConnection(HOST, self.port, timeout=PATIENCE)
            connection.request("GET", "/livez")  # afterwards one worker has the connection
            connection.getresponse().read()
            accepted_by = worker_of(connection, self.workers)
            if accepted_by in self._connections:
                connection.close()
            else:
                self._connections[accepted_by] = connection
            if worker in self._connections:
                return self._connections[worker]
        raise TimeoutError(f"worker {worker} accepted no connection")


@pytest.fixture
def web(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("BUY_LIMIT", "100000/minute")
    put_in_force("redis")
    with WebServer(WORKERS) as server:
        until(lambda: len(server.children()) == WORKERS, "all workers")
        web = Web(server)
        yield web
        web.close()


def change_password(web: Web, buyer: Buyer) -> None:
    buyer.user.set_password("another-kettle-7")
    buyer.user.save()


def deactivate(web: Web, buyer: Buyer) -> None:
    buyer.user.is_active = False
    buyer.user.save()


def delete(web: Web, buyer: Buyer) -> None:
    buyer.user.delete()


ENDS: list[Callable[[Web, Buyer], None]] = [
    lambda web, buyer: web.sign_out(buyer),
    change_password,
    deactivate,
    delete,
]


def acceptances(web: Web, attempts: list[tuple[int, Buyer, float]], sale: Sale) -> list[float]:
    """Buy until all tokens are refused; return the age of the change at each accepted attempt."""
    accepted, pending = [], attempts
    while pending:
        waiting = []
        for worker, buyer, ended_at in pending:
            after = time.monotonic() - ended_at
            if web.buy(worker, buyer, sale) not in REFUSED:
                assert after < PATIENCE
                accepted.append(after)
                waiting.append((worker, buyer, ended_at))
        pending = waiting
    return accepted


@pytest.mark.parametrize("end", ENDS, ids=["sign-out", "password", "deactivation", "deletion"])
def test_every_worker_refuses_a_revoked_token(end, web: Web, settings) -> None:
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
    sale = a_sale(stock=10_000, limit=100)
    buyers = signed_in([a_customer() for _ in range(CUSTOMERS)])
    (first,) = signed_in([a_customer()])
    for worker in web.workers:
        assert web.buy(worker, first, sale) == 201, "the token alone buys"

    attempts, accepted = [], [0.0]
    for number, buyer in enumerate(buyers, 1):
        known = replace(buyer, user=User(pk=buyer.user.pk))  # a deleted user loses its key
        end(web, buyer)
        attempts += [(worker, known, time.monotonic()) for worker in web.workers]
        if number % BATCH == 0:
            accepted += acceptances(web, attempts[-BATCH * WORKERS :], sale)
    until(lambda: time.monotonic() > attempts[-1][2] + PROMISE, "the end of the promised time")
    refused = [web.buy(worker, buyer, sale) in REFUSED for worker, buyer, _ in attempts]
    print(  # noqa: T201 - the measured figure
        f"\n{sum(refused)} of {len(refused)} attempts refused after {PROMISE:g} s; "
        f"the last token was accepted {max(accepted):.2f} s after the change"
    )
    assert max(accepted) < PROMISE
    assert all(refused)


def test_control_without_its_revocation_a_token_buys_again(web: Web) -> None:
    """The refusals above come from the revocation and nothing else."""
    sale = a_sale(stock=100, limit=100)
    (buyer,) = signed_in([a_customer()])
    web.sign_out(buyer)
    browser = Client(headers={"Cookie": buyer.cookies})
    assert browser.get("/accounts/profile/").status_code == 302, "the session has ended"
    TokenRevocation.objects.all().delete()
    deadline = time.monotonic() + PATIENCE
    for worker in web.workers:
        while web.buy(worker, buyer, sale) != 201:
            assert time.monotonic() < deadline
