"""The textbook lock in a MySQL table: it works, and it has three flaws."""

from __future__ import annotations

import time

import pytest

from devservers.faults.waiting import until
from loadtest.recipes.mysql_row import MySQLRowRecipe
from locking.claims import Claim

pytestmark = [pytest.mark.stores, pytest.mark.django_db(transaction=True)]


def claim(name: str, owner: str, ttl: float = 30.0) -> Claim:
    return Claim(name=name, owner=owner, ttl=ttl)


def test_the_recipe_has_its_three_flaws() -> None:
    recipe = MySQLRowRecipe("recipe", location="default")
    first = claim("textbook", "holder", ttl=0.05)
    assert recipe.acquire(first, 0) is not None
    started = time.monotonic()
    assert recipe.acquire(claim("textbook", "waiter"), 5) is None
    assert time.monotonic() - started < 4, "it cannot wait"
    assert recipe.acquire(first, 0) is None, "it is not reentrant"
    until(lambda: time.monotonic() > started + 0.2, "the ttl passing")
    assert recipe.acquire(claim("textbook", "waiter"), 0) is None, "it never expires"
    assert [(held.name, held.owner) for held in recipe.inspect()] == [("textbook", "holder")]
    assert recipe.break_lock("textbook")
    assert recipe.acquire(claim("textbook", "waiter"), 0) is not None
    recipe.release(claim("textbook", "waiter"), 0)
    recipe.close()
