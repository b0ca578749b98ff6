"""Locks and users for the tests of the shop; their factories are in `making`."""

from importlib import import_module

import pytest
from django.core.cache import cache
from django.test import Client

from locking import locks
from shop.models import Order, User
from tests.locking.scripted import PATH, ScriptedBackend
from tests.shop.making import a_customer, a_sale, put_in_force, signed_in
from tests.shop.purchases import buy

import_module("shop.urls")  # before a test chooses another payment provider, which has other URLs


@pytest.fixture(autouse=True)
def patient(settings) -> None:
    """On a loaded machine no request is late, unless its test makes it."""
    settings.LOCK_TIMEOUT, settings.HARD_DEADLINE = 10.0, 13.0


@pytest.fixture
def in_force(db: None) -> None:
    """`process` is in force, and Redis remembers nothing: no page, no counted request."""
    put_in_force("process")
    cache.clear()


@pytest.fixture
def guard(db: None, settings) -> ScriptedBackend:
    """Locks with tokens, in memory, are in force: what is tested is what they guard."""
    settings.LOCKS = {**settings.LOCKS, "scripted": {"BACKEND": PATH}}
    put_in_force("scripted")
    cache.clear()
    return locks["scripted"].backend


@pytest.fixture
def li(db: None) -> User:
    return a_customer()


@pytest.fixture
def order(li: User) -> Order:
    """Li's unpaid order."""
    return buy(a_sale(), customer=li).order


@pytest.fixture
def shop(li: User) -> Client:
    """Li's browser."""
    return signed_in(li)


@pytest.fixture
def amy(db: None) -> Client:
    """The browser of a superuser."""
    return signed_in(User.objects.create_superuser("amy"))
