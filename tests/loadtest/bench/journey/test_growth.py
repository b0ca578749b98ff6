"""The data of a shop that has grown is consistent, and its pages and jobs run on it."""

import re

import pytest
from django.core.cache import cache

from inventory.models import StockMovement
from loadtest.bench.journey import growth, growth_data
from shop.administration.audit import audit_all
from shop.models import Order

SMALL = {
    "PRODUCTS": 3,
    "SALES": 25,
    "CUSTOMERS": 400,
    "SMALL": 600,
    "BIG": 300,
    "ARCHIVED": 100,
    "EXPIRING": 5,
    "RUNS": 20,
    "KEYS": 20,
    "SESSIONS": 20,
    "ROUNDS": 1,
    "PER_KIND": 1,
}


pytestmark = [pytest.mark.only("mysql"), pytest.mark.django_db(transaction=True)]


@pytest.fixture(autouse=True)
def _few_rows(monkeypatch) -> None:
    cache.clear()
    for name, value in SMALL.items():
        for module in (growth, growth_data):
            monkeypatch.setattr(module, name, value, raising=False)


def test_data_is_consistent() -> None:
    assert growth_data.fill().slug == "growth-1"
    assert Order.objects.count() == 900
    assert StockMovement.objects.exclude(reason="stocked").count() == 200 + 900 + 135
    assert all(audit.ok for audit in audit_all())


@pytest.mark.long
def test_every_page_opens_and_every_job_runs() -> None:
    rows = growth.rows()
    assert {row["what"] for row in rows} == {"page", "job", "service"}
    assert {row.get("status", 200) for row in rows} <= {200, 302}
    queries = {row["name"]: row["queries"] for row in rows if row["what"] == "page"}
    [of_sale] = [name for name in queries if re.fullmatch(r"/admin/shop/sale/\d+/change/", name)]
    assert queries.pop(of_sale) < 30, "with its report"
    assert max(queries.values()) < 20, queries
