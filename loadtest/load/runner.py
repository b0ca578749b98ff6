"""Execute the runs of a plan in the lab's own stores.

The request is a Plan; the events are progress, and one "run" for each run.
"""

import multiprocessing
import os
import platform
import random
from collections.abc import Sequence
from typing import Any

import django
from django.conf import settings
from django.db import connection, connections
from redis import Redis

from devservers.faults.worker import emit
from devservers.process_pool import PoolFailed
from loadtest.kernel.faults import FAULTS, TTL, marks
from loadtest.kernel.history import dump, history
from loadtest.kernel.judges import Run, facts, judge
from loadtest.kernel.lost_updates import lost_updates
from loadtest.kernel.topology import Stores
from loadtest.load.buyers import SaleLoad
from loadtest.load.plan import Plan
from loadtest.load.sale import open_sale
from loadtest.load.sale_run import run_sale
from loadtest.load.verdict import curve, expected, figures, not_run
from locking import LockError, locks, policy
from shop.models import User


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Execute a request."""
    plan = Plan(**asked)
    if plan.fault != "none":
        _shorten_leases()
    customers = [] if "database" in stores.missing else _make_customers(plan)
    for names in plan.guards():
        needed = ("database", FAULTS[plan.fault].server, names["backend"])
        missing = [stores.missing[one] for one in needed if one in stores.missing]
        run = not_run(plan, missing[0]) if missing else _run(plan, customers, names, stores)
        emit("run", run={**names, **run})


def versions() -> dict[str, Any]:
    """Return the versions and the machine that the figures were measured on."""
    sql = {"sqlite": "SELECT sqlite_version()", "postgresql": "SHOW server_version"}
    with connection.cursor() as cursor:
        cursor.execute(sql.get(connection.vendor, "SELECT version()"))
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
    """Create the buyers, and return them in the order that the seed determines."""
    unusable = "!"
    User.objects.bulk_create(
        [User(username=f"buyer-{n}", password=unusable) for n in range(plan.buyers)],
        batch_size=1000,
    )
    customers = list(User.objects.order_by("pk"))
    random.Random(plan.seed).shuffle(customers)
    return customers


def _run(
    plan: Plan, customers: Sequence[User], names: dict[str, Any], stores: Stores
) -> dict[str, Any]:
    """Let all buyers buy in a sale of its own, then count the rows."""
    backend, discipline = names["backend"], names["discipline"]
    try:
        # By force: there are no buyers yet.
        policy.switch(backend=backend, mode=discipline, reason="lab run", force=True)
    except LockError as error:
        return not_run(plan, str(error))
    sale = open_sale("-".join(map(str, names.values())), plan.stock)
    capabilities = locks[backend].capabilities
    # MySQL's sessions end with their connection, which a stopped holder keeps.
    expires_in_pause = capabilities.expires or backend == "zookeeper"
    # Forked processes must not share connections.
    connections.close_all()
    locks.close()
    folder = settings.VAR / "history" / sale.slug
    folder.mkdir(parents=True)
    emit("starting", what="buyers")
    try:
        started, outcomes, injections = run_sale(
            SaleLoad(plan, sale.slug, customers, backend=backend, history=folder),
            stores,
            progress=lambda **now: emit("progress", of=plan.buyers, **now, **names),
            passes_on=expires_in_pause and plan.processes > 1,
        )
    except PoolFailed as error:
        return not_run(plan, error.reason)
    faults = [one.name for one in injections]
    if plan.fault != "none" and faults.count(plan.fault) < plan.strikes:
        often = f" {plan.strikes} times" if plan.strikes > 1 else ""
        return not_run(plan, f"{plan.fault} did not fire{often}")
    if missed := [one.name for one in injections if not one.proof]:
        return not_run(plan, f"{missed[0]} was not confirmed")
    promise = expected(
        plan,
        exclusion=capabilities.exclusion,
        discipline=discipline,
        outlived=expires_in_pause,
        faults=faults,
    )
    # A lock whose server has forgotten its grants may be granted twice.
    forgets = any(FAULTS[name].may_forget(backend) for name in faults)
    is_exclusive, rows = capabilities.exclusion == "machines" and not forgets, dump(sale)
    record = Run(history(folder), rows, is_exclusive, capabilities.fencing)
    audit = rows.audit
    sold = {"units": audit.held + audit.sold, "counted": audit.initial - audit.available}
    return {
        **figures(plan, audit, outcomes, started),
        "expected": promise,
        "sold_at": curve(outcomes, started),
        "marks": marks(injections, started),
        "faults": [
            {"name": one.name, "at": round(one.at - started, 3), "proof": one.proof}
            for one in injections
        ],
        "checked": {"breaches": judge(record), "facts": facts(record)},
        "lost_updates": lost_updates(record.events, **sold, started=started),
    }


def _shorten_leases() -> None:
    """Shorten all leases, so that a run with a fault does not have to wait for them."""
    for alias, conf in settings.LOCKS.items():
        conf["TTL"] = TTL
        if alias == "zookeeper":
            conf["OPTIONS"]["SESSION_TIMEOUT"] = TTL
