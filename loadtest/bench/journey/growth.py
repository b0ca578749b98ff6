"""The time of each staff page and each scheduled job in a shop that has grown."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from html import unescape
from statistics import median
from typing import Any

from celery import current_app
from django.conf import settings
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from loadtest.bench.journey.growth_data import fill
from locking import single_flight
from shop.administration.audit import audit_sale
from shop.catalogue import page_cache
from shop.models import Order, Sale, User
from shop.operations import live

Row = dict[str, Any]

EXPIRING = 1_000
"""Orders whose time to pay ends before each round of the job that expires them."""
ROUNDS = 5
SLOW_MS = 1000.0
"""A round that takes longer is the last one."""
SEARCHED = ("customer-777", "growth-1", "nothing")
PER_KIND = 2
"""Links of a list that are followed for each kind, e.g. of the many products to filter by."""


def rows() -> list[Row]:
    """Fill the database and return a row for each page and each job, the slowest first.

    A row has `what` ("page", "job" or "service"), `name`, `ms`, `cpu_ms` (of this process alone),
    `queries` and, for a page, its `status`. The milliseconds are the median of five rounds, and of
    a job the slowest round: only the first may find work.
    """
    big = fill()
    found = [*_pages(big), *_jobs(), _timed("service", "audit of the big sale", _audit(big))]
    return sorted(found, key=lambda row: -row["ms"])


def _pages(big: Sale) -> Iterator[Row]:
    staff, customer = Client(SERVER_NAME="127.0.0.1"), Client(SERVER_NAME="127.0.0.1")
    staff.force_login(User.objects.get(username="growth-staff"))
    customer.force_login(User.objects.get(username="customer-1"))
    for path in _staff_paths(staff):
        yield _page(staff, path)
    for path, clear in (
        ("/ops/", live.invalidate),
        ("/ops/statistics/", live.invalidate),
        ("/", _clear_pages),
        ("/products/", _clear_pages),
        (f"/sales/{big.slug}/", _clear_pages),
    ):
        yield _page(staff, path, clear)
    yield _page(customer, "/orders/")
    yield _page(customer, "/orders/?page=10")
    yield _page(customer, f"/sales/{big.slug}/", _clear_pages)


def _staff_paths(staff: Client) -> Iterator[str]:
    """Yield the admin's lists with each kind of filter, order and search, and its forms."""
    yield "/admin/"
    for model, of in admin.site._registry.items():
        path = f"/admin/{model._meta.app_label}/{model._meta.model_name}/"
        yield path
        response = staff.get(path)
        kinds: dict[tuple[str, ...], int] = {}
        for link in dict.fromkeys(re.findall(r'href="(\?[^"]+)"', response.content.decode())):
            query = unescape(link)
            kind = tuple(sorted(part.partition("=")[0] for part in query[1:].split("&")))
            kinds[kind] = kinds.get(kind, 0) + 1
            if kinds[kind] <= PER_KIND:
                yield path + query
        if of.search_fields:
            yield from (f"{path}?q={text}" for text in SEARCHED)
        newest = model._default_manager.order_by("-pk").first() if response.context else None
        if newest is not None and model is not Sale:
            yield f"{path}{newest.pk}/change/"
        if of.has_add_permission(response.wsgi_request):
            yield f"{path}add/"
    yield f"/admin/shop/sale/{Sale.objects.get(slug='growth-1').pk}/change/"


def _page(client: Client, path: str, before: Callable[[], object] = lambda: None) -> Row:
    statuses: list[int] = []
    row = _timed("page", path, lambda: statuses.append(client.get(path).status_code), before)
    return row | {"status": max(statuses)}


def _jobs() -> Iterator[Row]:
    schedule: dict[str, dict[str, Any]] = settings.CELERY_BEAT_SCHEDULE
    for entry in schedule.values():
        name = entry["task"]
        before = _let_orders_expire if name.endswith("expire_unpaid_orders") else lambda: None
        job = partial(current_app.tasks[name], *entry.get("args", ()))
        yield _timed("job", name, job, before, of=max)


def _let_orders_expire() -> None:
    pending = Order.objects.filter(status=Order.Status.PENDING, pay_by__gt=timezone.now())
    due = list(pending.order_by("-pk").values_list("pk", flat=True)[:EXPIRING])
    Order.objects.filter(pk__in=due).update(pay_by=timezone.now() - timedelta(minutes=1))


def _audit(sale: Sale) -> Callable[[], None]:
    def audit() -> None:
        found = audit_sale(sale=sale)
        assert found.ok, found.breaches

    return audit


def _clear_pages() -> None:
    single_flight.invalidate(*page_cache.NAMESPACES)


def _timed(
    what: str,
    name: str,
    call: Callable[[], object],
    before: Callable[[], object] = lambda: None,
    of: Callable[[Sequence[float]], float] = median,
) -> Row:
    """Count the queries in a round of its own: counting them costs time."""
    times, cpu = [], []
    for _ in range(ROUNDS):
        before()
        began, used = time.perf_counter(), time.process_time()
        call()
        times.append((time.perf_counter() - began) * 1000)
        cpu.append((time.process_time() - used) * 1000)
        if times[-1] > SLOW_MS:
            break
    before()
    with CaptureQueriesContext(connection) as queries:
        call()
    return {
        "what": what,
        "name": name,
        "ms": round(of(times), 1),
        "cpu_ms": round(of(cpu), 1),
        "queries": len(queries),
    }
