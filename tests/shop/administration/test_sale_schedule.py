"""Scheduled work: its limits; rows are deleted once nothing depends on them, and not before."""

from datetime import timedelta

import pytest
from celery import current_app
from django.conf import settings
from django.utils import timezone

from locking.jobs.delivery import is_run_once
from shop.administration import sale_management
from shop.administration.sale_management import fixed_fields, prune_quotas, unlist
from shop.models import CustomerQuota, Order, Sale
from shop.orders.service import expire_unpaid_orders
from tests.shop.making import a_sale, fresh
from tests.shop.purchases import buy

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]
AGES = {"open": timedelta(), "ended": timedelta(days=6), "old": timedelta(days=8)}


@pytest.fixture
def sales() -> dict[str, Sale]:
    """Sales with two buyers each; one order of "unpaid" can still be returned."""
    found = {}
    for name in (*AGES, "unpaid"):
        sale = a_sale()
        for _ in range(2):
            buy(sale)
        Order.objects.filter(sale=sale).update(status=Order.Status.PAID)
        if age := AGES.get(name, AGES["old"]):
            ended = timezone.now() - age
            Sale.objects.filter(pk=sale.pk).update(
                opens_at=ended - timedelta(hours=1), closes_at=ended
            )
        found[name] = fresh(sale)
    last = Order.objects.filter(sale=found["unpaid"]).first()
    Order.objects.filter(pk=last.pk).update(status=Order.Status.PENDING, pay_by=timezone.now())
    return found


def left(sales: dict[str, Sale]) -> set[str]:
    return {name for name, sale in sales.items() if sale.customerquota_set.exists()}


def test_quotas_of_sales_that_are_long_over_are_deleted(sales, monkeypatch) -> None:
    monkeypatch.setattr(sale_management, "BATCH", 1)
    assert prune_quotas() == 2
    assert left(sales) == {"open", "ended", "unpaid"}
    assert expire_unpaid_orders() == 1, "its return finds the quota"
    assert prune_quotas() == 2
    assert left(sales) == {"open", "ended"}
    assert prune_quotas() == 0
    assert CustomerQuota.objects.count() == 4


def test_sale_whose_quotas_may_be_gone_cannot_be_opened_again(sales) -> None:
    fixed = {name for name, sale in sales.items() if "closes_at" in fixed_fields(sale=sale)}
    assert fixed == {"old", "unpaid"}
    assert unlist(sale=sales["ended"])
    assert "closes_at" in fixed_fields(sale=sales["ended"]), "a form that is on its way"


def test_every_scheduled_task_exists_has_limits_and_runs_once() -> None:
    current_app.loader.import_default_modules()
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        task = current_app.tasks[entry["task"]]
        assert task.soft_time_limit < task.time_limit, name
        assert task.time_limit < settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
        assert is_run_once(task) or name == "resend-unfinished-runs", name
        assert task.acks_late, name
        assert task.reject_on_worker_lost, name
