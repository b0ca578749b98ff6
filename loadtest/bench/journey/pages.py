"""Every request of visitors, buyers, people in a waiting room and staff, as browsers send it."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from html import unescape
from itertools import cycle, islice, repeat
from statistics import mean
from urllib.parse import urlencode

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.urls import reverse
from django.utils import timezone

from devservers import HOST
from loadtest.load.http.buyers import Buyer, sign_in, signed_in
from loadtest.load.http.client import Connection
from loadtest.load.sale import open_sale, remove_sale
from loadtest.scenarios.course import COURSE
from shop.management.commands.seed import SUPERUSER
from shop.models import Payment, Sale, User
from waiting_room.models import Room

WATCHED = 300.0
"""Seconds for which a buyer watches the sale before it opens."""
LATER = timedelta(hours=1)
UNITS = 1_000_000
PASSWORD = "a password of the benchmark"  # noqa: S105
_POLL = re.compile(r'hx-get="([^"]+)" hx-trigger="(?:load delay:(\d+)ms|every (\d+)s)')
_FILE = re.compile(r'(?:src|href)="(/static/[^"]+)"')

Requests = Iterable[bytes]


def get(path: str, buyer: Buyer | None = None, *, encoding: str = "gzip") -> bytes:
    """Return the HTTP request of a page or a poll."""
    cookie = f"Cookie: {buyer.cookies}\r\n" if buyer else ""
    return (
        f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nAccept: text/html\r\n"
        f"Accept-Encoding: {encoding}\r\n{cookie}\r\n"
    ).encode()


def fetch(port: int, path: str, buyer: Buyer | None = None) -> str:
    """Return the body of a page."""
    connection = Connection((HOST, port), 0.0)
    with connection.socket:
        connection.send(get(path, buyer, encoding="identity"))
        while connection.receive() is None:
            pass
    return connection.body.decode()


def poll_of(page: str) -> tuple[str, float]:
    """Return the address that a page polls, and the seconds until it does so for the first time."""
    found = _POLL.search(page)
    if found is None:
        raise ValueError(f"no poll in {page!r:.200}")
    path, delay, every = found.groups()
    return unescape(path), int(delay) / 1000 if delay else float(every)


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


@dataclass
class World:
    """The shop of the demo with one more sale that is open and two that are not, and its people."""

    count: int
    """Buyers."""
    sale: Sale = field(init=False)
    before: Sale = field(init=False)
    room: Room = field(init=False)
    staff: Buyer = field(init=False)
    buyers: Iterator[Buyer] = field(init=False)
    files: list[str] = field(init=False)

    def __post_init__(self) -> None:
        call_command("seed", stdout=sys.stderr)
        self.sale, self.before = open_sale("journey", UNITS), upcoming("before", LATER)
        room = upcoming("room", LATER)
        self.room = Room.objects.create(sale=room, mode=Room.Mode.LOTTERY)
        (self.staff,) = signed_in([User.objects.get(username=SUPERUSER)])
        buyers = sign_in(self.count)
        User.objects.filter(pk__in=[one.user.pk for one in buyers]).update(
            password=make_password(PASSWORD)
        )
        # The hash of a session's password has changed.
        self.buyers = iter(signed_in(User.objects.filter(username__startswith="buyer-")))

    def find_files(self, port: int) -> None:
        """Collect the static files that a buyer's first visit loads."""
        pages = ("/", "/products/kettle/", self.before.get_absolute_url(), reverse("login"))
        self.files = sorted({file for page in pages for file in _FILE.findall(fetch(port, page))})

    def requests(self, port: int, people: int) -> Iterator[tuple[str, Requests]]:
        """Yield each request's name and its messages; a later one needs the answers before it.

        Messages that repeat for ever change nothing. `people` more buyers do the others once.
        """
        buyers = list(islice(self.buyers, people))
        yield "/livez", repeat(get("/livez"))
        yield from self._pages(port, None, "")
        yield "sign-in page", repeat(get(reverse("login")))
        yield "static file", cycle([get(file) for file in self.files])
        yield "/learn/", repeat(get(reverse("learn")))
        yield "/learn/ step", repeat(get(reverse("learn-step", args=[COURSE[0].name])))
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
        slug, me = self.room.sale.slug, buyers[0]
        page = reverse("room", args=[slug])
        yield "waiting room", repeat(get(page))
        csrf = [urlencode({"csrfmiddlewaretoken": buyer.csrf}) for buyer in buyers]
        joins = zip(buyers, csrf, strict=True)
        join = reverse("room-join", args=[slug])
        yield "join the waiting room", [buyer.post(join, form) for buyer, form in joins]
        yield "waiting room, joined", repeat(get(page, me))
        yield "poll of the waiting room", repeat(get(reverse("room-status", args=[slug])))
        yield "place in the waiting room", repeat(get(reverse("room-place", args=[slug]), me))

    def _purchase(self, buyers: list[Buyer]) -> Iterator[tuple[str, Requests]]:
        buy = reverse("buy", args=[self.sale.slug])
        yield "purchase", [one.post(buy, one.form(self.sale, attempt=1)) for one in buyers]
        bought = [(one, one.user.orders.get()) for one in buyers]
        yield "orders", [get(reverse("orders"), one) for one in buyers]
        pages = [get(order.get_absolute_url(), one) for one, order in bought]
        yield "order", pages
        token = {"csrfmiddlewaretoken": buyers[0].csrf}
        yield (
            "start of the payment",
            [
                one.post(reverse("payment", args=[order.number]), urlencode(token))
                for one, order in bought
            ],
        )
        payments = [(one, Payment.objects.get(order=order)) for one, order in bought]
        yield (
            "payment page",
            [get(reverse("gateway", args=[payment.reference]), one) for one, payment in payments],
        )
        choice = urlencode({**token, "choice": "approve"})
        yield (
            "end of the payment",
            [
                one.post(reverse("gateway-answer", args=[payment.reference]), choice)
                for one, payment in payments
            ],
        )
        yield "paid order", pages

    def _administration(self) -> Iterator[tuple[str, Requests]]:
        for name in ("ops", "ops-live", "ops-statistics", "lab", "admin:index"):
            yield f"staff: {name}", repeat(get(reverse(name), self.staff))
        for model in ("sale", "order", "payment", "user"):
            page = reverse(f"admin:shop_{model}_changelist")
            yield f"staff: {model}s", repeat(get(page, self.staff))


def sign_in_form(buyer: Buyer) -> bytes:
    """Return the HTTP request that signs a buyer in from a browser without a session."""
    form = {"username": buyer.user.username, "password": PASSWORD}
    body = urlencode({**form, "csrfmiddlewaretoken": buyer.csrf})
    cookies = [one for one in buyer.cookies.split("; ") if settings.CSRF_COOKIE_NAME in one]
    return (
        f"POST {reverse('login')} HTTP/1.1\r\nHost: {HOST}\r\nCookie: {cookies[0]}\r\n"
        "Content-Type: application/x-www-form-urlencoded\r\n"
        f"Content-Length: {len(body)}\r\n\r\n{body}"
    ).encode()
