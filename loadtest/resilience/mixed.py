"""People of all kinds at a shop: who only looks, buys, waits in line, pays, changes his mind."""

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from devservers import HOST
from loadtest.load.http_buyers import Buyer
from loadtest.resilience.shop import Shop, fetch
from shop.models import Sale, User

TICKET_SECONDS = 60.0
"""How long somebody looks at a ticket."""
LOOK = 0.2
BUSY = (409, 429, 503)
"""What a busy shop may say; who hears it goes away."""
_COOKIE = re.compile(rb"\r\nSet-Cookie: *(\w+)=([^;\r]*)", re.IGNORECASE)


class TurnedAway(Exception):
    """Somebody was told to come back later, or something that nobody should hear."""


class People:
    """Visits to a shop, and what came of them."""

    def __init__(self, shop: Shop, sales: Sequence[Sale]) -> None:
        self.shop = shop
        self.direct, self.queued = sales
        self.told: Counter[str] = Counter()
        """How often which step got which answer."""
        self.odd: list[str] = []
        """What should not have been."""
        self.ordered: Counter[int] = Counter()
        """Orders that were acknowledged, by sale."""
        self._guard = threading.Lock()
        self._password = uuid4().hex
        self._signer = User.objects.create_user("signer", password=self._password)
        self._visits: dict[Callable[[], None], int] = {
            self.browse: 60,
            self.buy: 20,
            self.queue: 12,
            self.scrape: 2,
            self.sign_in: 1,
        }

    @contextmanager
    def at(self, threads: int, *, every: float = 0.0) -> Iterator[None]:
        """So many at a time while the block lasts; each comes every so many seconds, or at once."""
        over = threading.Event()

        def come() -> None:
            due = time.monotonic() + random.uniform(0, every)
            while not over.wait(max(0.0, due - time.monotonic())):
                due = max(due + every, time.monotonic() - every)
                self._visit()

        people = [threading.Thread(target=come) for _ in range(threads)]
        for one in people:
            one.start()
        try:
            yield
        finally:
            over.set()
            for one in people:
                one.join()

    @property
    def visits(self) -> int:
        """How many have begun."""
        return self.told["visits"]

    def _visit(self) -> None:
        (visit,) = random.choices(list(self._visits), list(self._visits.values()))
        with self._guard:
            self.told["visits"] += 1
        try:
            visit()
        except TurnedAway:
            pass
        except Exception as error:  # noqa: BLE001 - the others go on; it is in the report
            self.odd.append(f"{visit.__name__}: {error!r}")

    # --- steps ----------------------------------------------------------------------------

    def _send(self, step: str, request: bytes, *expected: int) -> bytes:
        """What was said to it; TurnedAway for any status but those that are expected."""
        status, said = fetch(self.shop.web.port, request)
        with self._guard:
            self.told[f"{step} {status}"] += 1
        if status in expected:
            return said
        if status not in BUSY:
            self.odd.append(f"{step}: {status} {said[-200:]!r}")
        raise TurnedAway

    def _get(self, step: str, path: str, cookies: str = "") -> bytes:
        accept = "application/json" if step == "ticket" else "text/html"
        request = f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: {accept}\r\n"
        return self._send(step, f"{request}Cookie: {cookies}\r\n\r\n".encode(), 200)

    def _post(self, step: str, path: str, buyer: Buyer, **fields: str) -> bytes:
        form = urlencode({"csrfmiddlewaretoken": buyer.csrf, **fields})
        return self._send(step, buyer.post(path, form), 200, 201, 302, 303)

    # --- visits ---------------------------------------------------------------------------

    def browse(self) -> None:
        """A look at some page; half of the visitors have signed in."""
        buyer = random.choice(self.shop.buyers)
        sale = random.choice([self.direct, self.queued])
        page = sale.get_absolute_url()
        path = random.choice(["/", "/products/", f"/products/{sale.slug}/", page, f"{page}stock/"])
        self._get("look", path, random.choice(["", buyer.cookies]))

    def buy(self) -> None:
        """Buy, and decide about the order."""
        buyer, request = self.shop.form(self.direct)
        order = _json(self._send("buy", request, 201))
        self._ordered(self.direct, buyer, order["url"])

    def queue(self) -> None:
        """Wait in line for an order, and decide about it."""
        buyer, request = self.shop.form(self.queued)
        ticket = _json(self._send("queue", request, 202))["url"]
        deadline = time.monotonic() + TICKET_SECONDS
        while (told := _json(self._get("ticket", ticket, buyer.cookies)))["status"] == "waiting":
            if time.monotonic() > deadline:
                raise TimeoutError(f"no order in {TICKET_SECONDS:g} s")
            time.sleep(LOOK)
        if told["status"] != "won":
            raise ValueError(told["status"])
        self._ordered(self.queued, buyer, told["order"])

    def _ordered(self, sale: Sale, buyer: Buyer, order: str) -> None:
        with self._guard:
            self.ordered[sale.pk] += 1
        self._get("look", order, buyer.cookies)
        step = random.choice(["pay", "payment", "cancel", "leave"])
        if step == "payment":
            there = _json(self._post(step, f"{order}payment/", buyer))["url"]
            self._get("look", there, buyer.cookies)
            self._post("approve", f"{there}answer/", buyer, choice="approve")
        elif step != "leave":  # then it expires
            self._post(step, f"{order}{step}/", buyer, idempotency_key=uuid4().hex)

    def sign_in(self) -> None:
        """With a password, to look at one's orders, and out again."""
        page = "/accounts/sign-in/"
        jar = _cookies(self._get("sign in", page))
        known = {"username": self._signer.username, "password": self._password}
        for path, fields in ((page, known), ("/accounts/sign-out/", {})):
            cookies = "; ".join(f"{cookie}={value}" for cookie, value in jar.items())
            guest = Buyer(self._signer, cookies, "", jar["csrftoken"])
            jar |= _cookies(self._post("sign in", path, guest, **fields))

    def scrape(self) -> None:
        """As Prometheus and a load balancer do."""
        for path in ("/metrics", "/readyz"):
            self._get("scrape", path)


def _json(said: bytes) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(said.partition(b"\r\n\r\n")[2])
    return told


def _cookies(said: bytes) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in _COOKIE.findall(said)}
