"""Visitors of all kinds: they browse, buy, queue, pay, cancel and sign in."""

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from loadtest.load.http.buyers import Buyer, get
from loadtest.resilience.shop import Shop, fetch, in_threads
from shop.models import Sale, User

RESERVATION_POLLS, POLL_SECONDS = 300, 0.2
BUSY = (409, 429, 503)
"""Statuses of a busy shop; they end the visit."""
WEIGHTS = {"browse": 60, "buy": 20, "queue": 12, "scrape": 2, "sign in": 1}
_COOKIE = re.compile(rb"\r\nSet-Cookie: *(\w+)=([^;\r]*)", re.IGNORECASE)


class Refused(Exception):
    """The shop answered with a status that ends the visit."""


class Visitors:
    """Visits to a shop, and their outcome."""

    def __init__(self, shop: Shop, sales: Sequence[Sale], seed: int) -> None:
        self.shop, self.sales, self._seed = shop, sales, seed
        self.visits = 0
        self.answers: Counter[str] = Counter()
        """The number of answers by step and status."""
        self.unexpected: list[str] = []
        """Answers and errors that must not occur."""
        self.ordered: Counter[int] = Counter()
        """The number of acknowledged orders by sale."""
        self._guard = threading.Lock()
        self._password = uuid4().hex
        self._user = User.objects.create_user("signer", password=self._password)

    @contextmanager
    def running(self, threads: int) -> Iterator[None]:
        """Visit the shop in `threads` threads while the block lasts.

        Each rests as long as its last visit took: on average, half of them wait for the shop.
        """

        def repeat(over: threading.Event) -> None:
            seconds = random.random()  # when a visit starts is not repeated
            while not over.wait(seconds):
                began = time.monotonic()
                self._visit()
                seconds = time.monotonic() - began

        with in_threads(repeat, threads):
            yield

    def _visit(self) -> None:
        """Do the next visit; what it does depends only on the seed and its number."""
        with self._guard:
            self.visits += 1
            rng = random.Random(f"{self._seed} {self.visits}")
        (kind,) = rng.choices([*WEIGHTS], [*WEIGHTS.values()])
        try:
            if kind in ("buy", "queue"):
                self.order(rng, self.sales[kind == "queue"])
            elif kind == "browse":
                self.browse(rng)
            elif kind == "sign in":
                self.sign_in()
            else:  # as Prometheus and a load balancer do
                self._get("scrape", "/metrics")
                self._get("scrape", "/readyz")
        except Refused:
            pass
        except Exception as error:  # noqa: BLE001 - the report names it, and the others continue
            self.unexpected.append(f"{kind}: {error!r}")

    def _send(self, step: str, message: bytes, *expected: int) -> bytes:
        """Return the answer; raise Refused for any status that is not expected."""
        status, answer = fetch(self.shop.web.port, message)
        with self._guard:
            self.answers[f"{step} {status}"] += 1
        if status in expected:
            return answer
        if status not in BUSY:
            self.unexpected.append(f"{step}: {status} {answer[-200:]!r}")
        raise Refused

    def _get(self, step: str, path: str, buyer: Buyer | None = None) -> bytes:
        accept = "application/json" if step == "reservation" else "text/html"
        return self._send(step, get(path, buyer, accept=accept), 200)

    def _post(self, step: str, path: str, buyer: Buyer, **fields: str) -> bytes:
        return self._send(step, buyer.submit(path, **fields), 200, 201, 302, 303)

    def browse(self, rng: random.Random) -> None:
        """View a page; half of the visitors have signed in."""
        buyer, sale = rng.choice(self.shop.buyers), rng.choice(self.sales)
        page = sale.get_absolute_url()
        path = rng.choice(["/", "/products/", f"/products/{sale.slug}/", page, f"{page}stock/"])
        self._get("look", path, rng.choice([None, buyer]))

    def order(self, rng: random.Random, sale: Sale) -> None:
        """Buy or reserve a unit; then pay, cancel or leave the order."""
        buyer, form = self.shop.form(sale)
        if sale.is_queued:
            order = self._won(_json(self._send("queue", form, 202))["url"], buyer)
        else:
            order = _json(self._send("buy", form, 201))["url"]
        with self._guard:
            self.ordered[sale.pk] += 1
        self._get("look", order, buyer)
        step = rng.choice(["pay", "payment", "cancel", "leave"])
        if step == "payment":
            page = _json(self._post(step, f"{order}payment/", buyer))["url"]
            self._get("look", page, buyer)
            self._post("approve", f"{page}answer/", buyer, choice="approve")
        elif step != "leave":  # an order that is left expires
            self._post(step, f"{order}{step}/", buyer, idempotency_key=uuid4().hex)

    def _won(self, page: str, buyer: Buyer) -> str:
        """Wait for the order of a reservation."""
        for _ in range(RESERVATION_POLLS):
            found = _json(self._get("reservation", page, buyer))
            if found["status"] == "won":
                return str(found["order"])
            if found["status"] != "waiting":
                break
            time.sleep(POLL_SECONDS)
        raise ValueError(f"a reservation is {found['status']}")

    def sign_in(self) -> None:
        """Sign in with a password and sign out again."""
        page = "/accounts/sign-in/"
        jar = _cookies(self._get("sign in", page))
        credentials = {"username": self._user.username, "password": self._password}
        for path, fields in ((page, credentials), ("/accounts/sign-out/", {})):
            cookies = "; ".join(f"{cookie}={value}" for cookie, value in jar.items())
            guest = Buyer(self._user, cookies, "", jar["csrftoken"])
            jar |= _cookies(self._post("sign in", path, guest, **fields))


def _json(answer: bytes) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return body


def _cookies(answer: bytes) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in _COOKIE.findall(answer)}
