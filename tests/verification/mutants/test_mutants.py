"""Each mutant violates a promise in some interleaving of its program, and the right lock in none.

`make verify WHAT=mutants` runs all; other runs take one of each store.
"""

from collections.abc import Iterator

import pytest

from devservers import Redis, start_all, stop_all
from inventory.models import Product
from inventory.stock import create_stock
from tests.verification.mutants.mutants import MUTANTS
from verification.interleavings.runner import searched
from verification.interleavings.worlds import Stores

LIMIT = 800
"""Interleavings within which each mutant must be found."""
QUICK = "release-any-owner", "quorum-of-one", "row-taken-while-held", "quantity-unchecked"
"""The mutants of every run; the others take minutes on a busy machine. Without a lock, and with a
release before the commit, programs of the game oversell in every run, too."""

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.only("sqlite")]


@pytest.fixture(scope="module")
def servers() -> Iterator[list[Redis]]:
    """One Redis, and three masters: the runs empty them."""
    made = [Redis() for _ in range(4)]
    start_all(made)
    yield made
    stop_all(made)


@pytest.fixture
def stores(servers: list[Redis]) -> Stores:
    product = Product.objects.create(name="Mutants", slug="mutants", price=1)
    stock_id = create_stock(product=product, quantity=1).pk
    return Stores(servers[0].url, [server.url for server in servers[1:]], stock_id)


@pytest.mark.faults(row="M", backend="each store", fired="mutant")
@pytest.mark.parametrize(
    ("program", "mutant"),
    [
        pytest.param(program, name, id=name, marks=[] if name in QUICK else [pytest.mark.long])
        for program, names in MUTANTS.items()
        for name in names
    ],
)
def test_mutant_is_found(
    stores: Stores, program: str, mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[program][mutant](monkeypatch)
    found = searched(program, LIMIT, stores, until_violation=True)
    assert found.violation


@pytest.mark.long
@pytest.mark.parametrize("program", MUTANTS)
def test_right_lock_violates_nothing(stores: Stores, program: str) -> None:
    found = searched(program, LIMIT, stores, until_violation=True)
    assert (found.violation, found.trace) == ("", ())
    assert found.is_complete or found.runs == LIMIT
