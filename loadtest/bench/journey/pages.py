"""Every request of visitors, buyers, people in a waiting room and staff, as browsers send it."""

import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from html import unescape
from itertools import count, cycle, repeat
from statistics import mean

from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from devservers import HOST
from loadtest.load.http import buyers
from loadtest.load.http.buyers import Buyer, sign_in, signed_in
from loadtest.load.http.client import Connection
from loadtest.load.sale import open_sale, remove_sale
from shop.management.commands.seed import SUPERUSER
from shop.models import Sale, User
from waiting_room.models import Room

WATCHED = 300.0
"""Seconds for which a buyer watches the sale before it opens."""
LATER = timedelta(hours=1)
UNITS = 1_000_000
PASSWORD = "a password of the benchmark"  # noqa: S105
_POLL = re.compile(r'data-poll="(\d+)" hx-get="([^"]+)"')
JITTER = 0.9
"""Mean part of the pause that the server asks for, after which static/js/shop.js polls."""
_FILE = re.compile(r'(?:src|href)="(/static/[^"]+)"')

Requests = Iterable[bytes]
get = partial(buyers.get, encoding="gzip")


def fetch(port: int, path: str, buyer: Buyer | None = None) -> str:
    """Return the body of a page."""
    with closing(Connection((HOST, port), 0.0)) as connection:
        connection.exchange(get(path, buyer, encoding="identity"))
        return connection.body.decode()


def poll_of(page: str) -> tuple[str, float]:
    """Return the address that a page polls, and the seconds until it does so for the first time."""
    found = _POLL.search(page)
    if found is None:
        raise ValueError(f"no poll in {page!r:.200}")
    pause, path = found.groups()
    return unescape(path), JITTER * int(pause) / 1000


def interval(port: int, page: str, *, samples: int = 20) -> float:
    """Return the mean seconds between two polls of open tabs of the page."""
    path, _ = poll_of(fetch(port, page))
    return mean(poll_of(fetch(port, path))[1] for _ in range(samples))


def polls_before_opening(port: int) -> int:
    """Return how often the page of a sale polls in the WATCHED seconds before the opening.

    The pages of sales that open sooner and sooner tell when the next poll is due.
    """
    left, polls = WATCHED, 0
    while True:
        sale = upcoming(f"watched-{polls}", timedelta(seconds=left))
        left -= poll_of(fetch(port, sale.get_absolute_url()))[1]
        remove_sale(sale)
        if left <= 0:
            return polls
        polls += 1


def upcoming(slug: str, opens_in: timedelta) -> Sale:
    """Create a sale that is not open yet."""
    sale = open_sale(slug, UNITS)
    sale.opens_at = timezone.now() + opens_in
    sale.save(update_fields=["opens_at"])
    return sale


class World:
    """The shop of the demo with three more sales, one of which is open."""

    def __init__(self) -> None:
        call_command("seed", stdout=sys.stderr)
        self.sale, self.before = open_sale("journey", UNITS), upcoming("before", LATER)
        self.room = Room.objects.create(sale=upcoming("room", LATER), mode=Room.Mode.LOTTERY)
        (self.staff,) = signed_in([User.objects.get(username=SUPERUSER)])
        self.files: list[str] = []
        """The static files that a buyer's first visit loads."""
        self._groups, self._password = count(1), make_password(PASSWORD)

    def take(self, people: int) -> list[Buyer]:
        """Create and return that many signed-in buyers."""
        buyers = sign_in(people, f"group{next(self._groups)}")
        users = User.objects.filter(pk__in=[buyer.user.pk for buyer in buyers])
        users.update(password=self._password)
        return signed_in(users)  # a session depends on the password

    def find_files(self, port: int) -> None:
        """Collect the static files of the pages before the purchase."""
        pages = ("/", "/products/kettle/", self.before.get_absolute_url(), reverse("login"))
        self.files = sorted({file for page in pages for file in _FILE.findall(fetch(port, page))})

    def requests(self, port: int, people: int) -> Iterator[tuple[str, Requests]]:
        """Yield each request's name and its messages; a later one needs the answers before it.

        Messages that repeat for ever change nothing. `people` new buyers do the others once.
        """
        buyers = self.take(people)
        yield "/livez", repeat(get("/livez"))
        yield from self._pages(port, None, "")
        yield "sign-in page", repeat(get(reverse("login")))
        yield "static file", cycle([get(file) for file in self.files])
        yield "/learn/", repeat(get(reverse("learn")))
        yield "/learn/ step", repeat(get(reverse("learn-step", args=["race"])))
        yield "sign-in", [sign_in_form(buyer) for buyer in buyers]
        yield from self._pages(port, buyers[0], ", signed in")
        yield from self._waiting(buyers)
        yield from self._purchase(buyers)
        yield from self._administration()

    def _pages(self, port: int, who: Buyer | None, suffix: str) -> Iterator[tuple[str, Requests]]:
        before, sale = self.before.get_absolute_url(), self.sale.get_absolute_url()
        for name, page in (
            ("home", "/"),
            ("products", reverse("products")),
            ("product", "/products/kettle/"),
            ("sale before the opening", before),
            ("sale", sale),
        ):
            yield name + suffix, repeat(get(page, who))
        for name, page in (("home", "/"), ("stock before the opening", before), ("stock", sale)):
            path, _ = poll_of(fetch(port, page, who))
            yield f"poll of {name}{suffix}", repeat(get(path, who))

    def _waiting(self, buyers: list[Buyer]) -> Iterator[tuple[str, Requests]]:
        slug = [self.room.sale.slug]
        page = reverse("room", args=slug)
        yield "waiting room", repeat(get(page))
        join = reverse("room-join", args=slug)
        yield "join the waiting room", [buyer.submit(join) for buyer in buyers]
        yield "waiting room, joined", repeat(get(page, buyers[0]))
        yield "poll of the waiting room", repeat(get(reverse("room-status", args=slug)))
        yield "place in the waiting room", repeat(get(reverse("room-place", args=slug), buyers[0]))

    def _purchase(self, buyers: list[Buyer]) -> Iterator[tuple[str, Requests]]:
        buy = reverse("buy", args=[self.sale.slug])
        yield "purchase", [one.post(buy, one.form(self.sale, attempt=1)) for one in buyers]
        yield "orders", [get(reverse("orders"), one) for one in buyers]
        orders = [(one, one.user.orders.get()) for one in buyers]
        pages = [get(order.get_absolute_url(), one) for one, order in orders]
        yield "order", pages
        start = [(one, reverse("payment", args=[order.number])) for one, order in orders]
        yield "start of the payment", [one.submit(where) for one, where in start]
        payments = [(one, [order.payments.get().reference]) for one, order in orders]
        yield "payment page", [get(reverse("payment-page", args=ref), one) for one, ref in payments]
        answer = [(one, reverse("gateway-answer", args=args)) for one, args in payments]
        yield "end of the payment", [one.submit(where, choice="approve") for one, where in answer]
        yield "paid order", pages

    def _administration(self) -> Iterator[tuple[str, Requests]]:
        lists = [f"admin:shop_{model}_changelist" for model in ("sale", "order", "payment", "user")]
        for name in ("ops", "ops-live", "ops-statistics", "lab", "admin:index", *lists):
            yield f"staff: {reverse(name)}", repeat(get(reverse(name), self.staff))


def sign_in_form(buyer: Buyer) -> bytes:
    """Return the HTTP request that signs a buyer in from a browser without a session."""
    _session, csrf = buyer.cookies.split("; ")
    stranger = replace(buyer, cookies=csrf)
    return stranger.submit(reverse("login"), username=buyer.user.username, password=PASSWORD)
