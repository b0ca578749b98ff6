"""Search the interleavings of programs, {"names": [...], "limit": N}, in a process of its own."""

import time
from contextlib import closing
from typing import Any

from django.conf import settings

from devservers.faults.worker import emit
from inventory.models import Product
from inventory.stock import create_stock
from verification.interleavings.gates import gates
from verification.interleavings.perform import Runs
from verification.interleavings.programs import PROGRAMS
from verification.interleavings.schedule import Result, search
from verification.interleavings.worlds import Stores

MASTERS = 3


def run(name: str, limit: int, stores: Stores) -> dict[str, Any]:
    """Search the interleavings of one program; return what was found."""
    program, began = PROGRAMS[name], time.monotonic()
    found = searched(name, limit, stores)
    return {
        "name": name,
        "clients": program.clients,
        "faults": program.faults,
        "breaks": program.breaks,
        **found._asdict(),
        "is_expected": found.violation == program.breaks,
        "seconds": round(time.monotonic() - began, 1),
    }


def searched(name: str, limit: int, stores: Stores, *, until_violation: bool = False) -> Result:
    """Search the interleavings of one program."""
    program = PROGRAMS[name]
    world = stores.open(program.store)
    with gates(world), closing(Runs(program, world, stores.stock_id)) as runs:
        return search(runs.perform, limit, until_violation=until_violation)


def main(asked: dict[str, Any], _servers: object) -> None:
    """Run the programs one after the other, and emit a row for each."""
    product = Product.objects.create(name="Interleavings", slug="interleavings", price=1)
    stock_id = create_stock(product=product, quantity=1).pk
    # The gates ask the masters by URL, so that the first one of a fault is the first asked.
    stores = Stores(settings.REDIS_URL, sorted(settings.REDLOCK_URLS)[:MASTERS], stock_id)
    for step, name in enumerate(asked["names"], 1):
        emit("progress", system=name, step=step, of=len(asked["names"]))
        emit("program", program=run(name, asked["limit"], stores))
