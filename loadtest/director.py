"""Stages the runs of a plan in the lab's own stores.

Asked with {"plan": ..., "missing": {backend: why}}, it tells the versions, progress and a run for
each run. It is a process of its own because its environment leads to the private stores; the one
that was asked for the load test stays in its own.
"""

import multiprocessing
import os
import platform
import random
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from decimal import Decimal
from multiprocessing.connection import wait
from multiprocessing.sharedctypes import RawArray
from threading import BrokenBarrierError
from typing import Any

import django
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone
from redis import Redis

from inventory.models import Product
from loadtest.buyers import START_SECONDS, Answer, Crowd, run
from loadtest.plan import Plan
from loadtest.telling import say
from loadtest.verdict import expected, judge, not_run
from locking import LockError, locks, policy
from shop.audit import audit_sale
from shop.models import Sale, User
from shop.sales import create_sale

PROGRESS_SECONDS = 0.1
OPEN_FOR = timedelta(days=1)


def main(asked: dict[str, Any]) -> None:
    """Stage what is asked for."""
    plan = Plan(**asked["plan"])
    call_command("migrate", verbosity=0, interactive=False)
    say("versions", versions=versions())
    product = Product.objects.create(slug="lab", name="Lab product", price=Decimal(1))
    customers = _make_customers(plan)
    for repeat in range(1, plan.repeats + 1):
        for discipline in plan.disciplines:
            for backend in plan.backends:
                names = {"backend": backend, "discipline": discipline, "repeat": repeat}
                if why := asked["missing"].get(backend) or _switch(backend, discipline):
                    say("run", run={**names, **not_run(plan, why)})
                    continue
                sale = _open_sale(plan, product, "-".join(map(str, names.values())))
                say("run", run={**names, **_stage(plan, sale, customers, names)})


def versions() -> dict[str, Any]:
    """What the numbers were measured on."""
    with connection.cursor() as cursor:
        is_sqlite = connection.vendor == "sqlite"
        cursor.execute("SELECT sqlite_version()" if is_sqlite else "SELECT version()")
        database = f"{connection.display_name} {cursor.fetchone()[0]}"
    found = {
        "python": platform.python_version(),
        "django": django.get_version(),
        "database": database,
        "cores": multiprocessing.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "platform": platform.platform(),
    }
    urls = [settings.REDIS_URL, *settings.REDLOCK_URLS]
    for url in [url for url in urls if url.startswith("redis:")][:1]:
        with Redis.from_url(url) as client:
            info = client.info("server")
        name = info.get("server_name", "redis")
        found["redis"] = f"{name} {info.get(f'{name}_version')}"
    return found


def _make_customers(plan: Plan) -> list[User]:
    """The buyers, in the order in which the seed sends them to the start line."""
    nobody_signs_in = "!"
    User.objects.bulk_create(
        [User(username=f"buyer-{n}", password=nobody_signs_in) for n in range(plan.buyers)],
        batch_size=1000,
    )
    customers = list(User.objects.order_by("pk"))
    random.Random(plan.seed).shuffle(customers)
    return customers


def _switch(backend: str, discipline: str) -> str:
    """Put a guard in force; the reason why it cannot be, or nothing."""
    try:
        # By force: nobody buys yet.
        policy.switch(backend=backend, discipline=discipline, reason="lab run", force=True)
    except (LockError, ImproperlyConfigured) as error:
        return str(error)
    return ""


def _open_sale(plan: Plan, product: Product, slug: str) -> Sale:
    now = timezone.now()
    return create_sale(
        product=product,
        slug=slug,
        price=product.price,
        quantity=plan.stock,
        opens_at=now - OPEN_FOR,
        closes_at=now + OPEN_FOR,
    )


def _stage(
    plan: Plan, sale: Sale, customers: Sequence[User], names: dict[str, Any]
) -> dict[str, Any]:
    """One run: the crowd is let in, and when the last has been served the rows are counted."""
    exclusion = locks[names["backend"]].capabilities.exclusion
    promise = expected(plan, exclusion=exclusion, discipline=names["discipline"])
    started, answers, errors = _sell(plan, sale.slug, customers, names)
    if errors:
        return not_run(plan, f"{len(errors)} went wrong: {errors[0]}")
    return judge(plan, audit_sale(sale=sale), answers, started, promise)


def _sell(
    plan: Plan, slug: str, customers: Sequence[User], names: dict[str, Any]
) -> tuple[float, list[Answer], list[str]]:
    """When the crowd started, what each buyer was told, and what went wrong."""
    # Children must not inherit what two of them could talk through.
    connections.close_all()
    locks.close()
    # fork: they share the code that is loaded already, so that four start at once.
    fork = multiprocessing.get_context("fork")
    threads = plan.processes * plan.threads
    crowd = Crowd(
        plan=plan,
        slug=slug,
        customers=customers,
        start=fork.Barrier(threads + 1),
        served=RawArray("l", threads),
        results=[fork.Pipe(duplex=False) for _ in range(plan.processes)],
    )
    workers = [
        fork.Process(target=run, args=(crowd, number), daemon=True)
        for number in range(plan.processes)
    ]
    for worker in workers:
        worker.start()
    for _, theirs in crowd.results:
        theirs.close()
    with suppress(BrokenBarrierError):  # whoever broke it says why
        crowd.start.wait(START_SECONDS)
    started = time.monotonic()
    answers: list[Answer] = []
    errors: list[str] = []
    waiting = [ours for ours, _ in crowd.results]
    while waiting:
        ready = wait(waiting, timeout=PROGRESS_SECONDS)
        for ours in [one for one in waiting if one in ready]:
            waiting.remove(ours)
            try:
                told, failed = ours.recv()
            except EOFError:
                told, failed = [], ["a process died"]
            answers += told
            errors += failed
        say("progress", served=sum(crowd.served), of=plan.buyers, **names)
    for worker in workers:
        worker.join()
    return started, answers, errors
