"""A direct purchase runs through five files in eight steps, through both entry points."""

import sys
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from types import FrameType

import pytest
from django.urls import get_resolver

from locking.failpoints import armed
from shop.models import Order
from tests.shop.making import a_sale, put_in_force
from tests.shop.web.wsgi_browser import Browser, alone

__all__ = ["alone"]
ROOT = Path(__file__).resolve().parents[3]
FIVE = [
    "shop/web/purchase.py",
    "shop/purchase/admission.py",
    "shop/purchase/place_order.py",
    "shop/purchase/group_commit.py",
    "inventory/stock.py",
]
STEPS = [
    ("shop/web/purchase.py", "__call__"),
    ("shop/web/purchase.py", "_serve"),
    ("shop/purchase/admission.py", "admit"),
    ("shop/purchase/place_order.py", "place_order"),
    ("shop/sales/purchase_request.py", "withdrawal_of"),
    ("shop/purchase/group_commit.py", "submit"),
    ("inventory/stock.py", "withdraw"),
    ("inventory/stock.py", "commit"),
]
"""The steps that docs/explanation/purchase.md numbers, by file and function."""


def file_of(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    is_ours = path.startswith(f"{ROOT}/") and "/.venv/" not in path
    return path.removeprefix(f"{ROOT}/") if is_ours else None


def trace(act: Callable[[], object]) -> list[tuple[str, str]]:
    """Return file and function of each call from the first one of the five files to the COMMIT."""
    # The first request of a process imports all views: of the process, not of the purchase.
    assert get_resolver().url_patterns
    calls: list[tuple[str, str]] = []
    committed: list[int] = []

    def record(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and (file := file_of(frame)):
            calls.append((file, frame.f_code.co_name))

    with armed("stock.committed", lambda: committed.append(len(calls))):
        sys.setprofile(record)
        try:
            act()
        finally:
            sys.setprofile(None)
    first = next(at for at, (file, _) in enumerate(calls) if file in FIVE)
    return calls[first : committed[0]]


@pytest.mark.django_db(transaction=True)
@pytest.mark.stores
@pytest.mark.parametrize(
    ("entry", "count"), [("token", "first order"), ("session", "second order")]
)
def test_purchase_runs_from_top_to_bottom(entry, count):
    put_in_force("redis")
    li, sale = Browser(), a_sale()
    if count == "second order":
        li.send(sale, li.form(sale, "l"))
    form = li.form(sale, is_first=count == "first order")
    if entry == "session":
        form = {**form, "purchase_token": ""}
    calls = trace(lambda: li.json(sale, form))
    assert Order.objects.filter(customer=li.user).count() == 1 + (count == "second order")

    entered = [file for file, _ in groupby(file for file, _ in calls if file in FIVE)]
    assert list(dict.fromkeys(entered)) == FIVE
    # The first two take turns: the view reads the sale, then the form, then asks for admission.
    assert entered[entered.index(FIVE[2]) :] == FIVE[2:]
    steps = [call for call in calls if call in STEPS]
    assert steps == STEPS, "each of the eight once, one after the other"
