"""Scheduled work of the shop, and its schedule."""

from __future__ import annotations

import logging
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery import current_app
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.cache import caches
from django.utils import timezone

from inventory.models import Stock
from locking.jobs.run_once import is_run_once
from locking.jobs.runs import HEADER
from locking.models import JobRun
from shop import tasks
from shop.administration import alerts
from shop.administration.sale_management import open_and_close_sales
from shop.catalogue import page_cache
from shop.models import User
from tests.shop.making import a_sale, put_in_force

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _clean():
    put_in_force("process")
    caches["default"].clear()
    yield
    caches["default"].clear()


def test_every_scheduled_task_exists_has_limits_and_runs_once() -> None:
    current_app.loader.import_default_modules()
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        task = current_app.tasks[entry["task"]]
        assert task.soft_time_limit < task.time_limit, name
        assert task.time_limit < settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
        assert is_run_once(task) or name == "resend-unfinished-runs", name
        assert task.acks_late, name
        assert task.reject_on_worker_lost, name


def test_pages_are_cached_before_the_opening(django_assert_num_queries) -> None:
    soon, later = a_sale(opens_in=3), a_sale(opens_in=60)
    now = timezone.now()
    assert open_and_close_sales(since=now, until=now).startswith("warmed 1")
    assert {sale.pk for sale in page_cache.get_cached_home()["upcoming"]} == {soon.pk, later.pk}
    with django_assert_num_queries(0):
        assert page_cache.get_cached_sale(slug=soon.slug).sale == soon
        page_cache.get_cached_home()


def test_expired_sessions_are_deleted() -> None:
    for key, hours in (("over", -1), ("good", 1)):
        ends = timezone.now() + timedelta(hours=hours)
        Session.objects.create(session_key=key, session_data="", expire_date=ends)
    tasks.prune_sessions()
    assert [session.pk for session in Session.objects.all()] == ["good"]


def test_openings_and_ends_are_logged_once(caplog) -> None:
    caplog.set_level(logging.INFO, "shop")
    sale = a_sale(stock=7, opens_in=-3, lasts=3600)
    over = a_sale(stock=7, opens_in=-3600, lasts=3598)
    now = timezone.now()
    ticks = [now - timedelta(seconds=10), now - timedelta(seconds=5), now]
    for tick in ticks:
        header = {HEADER: tick.isoformat()}
        tasks.open_and_close_sales.apply(headers=header)
        tasks.open_and_close_sales.apply(headers=header)
    assert caplog.text.count(f"Sale {sale.slug} is open with 7 units") == 1
    assert caplog.text.count(f"Sale {over.slug} has ended: 0 of 7 sold") == 1
    told = JobRun.objects.order_by("scheduled_for").values_list("detail", "duplicates")
    assert list(told) == [("warmed 0, opened 0, closed 0", 1)] * 2 + [
        ("warmed 0, opened 1, closed 1", 1)
    ]


def test_inconsistent_sale_alerts_until_it_is_repaired(client, caplog) -> None:
    sound, sale = a_sale(stock=5), a_sale(stock=5)
    staff = User.objects.create(username="amy", is_staff=True)
    customer = User.objects.create(username="li")
    Stock.objects.filter(pk=sale.stock_id).update(quantity=4)
    assert tasks.audit_stock.apply().get() == f"2 audited, 1 inconsistent: {sale.slug}"
    assert f"Stock of sale {sale.slug} is inconsistent" in caplog.text
    assert "shop_inconsistent_sales 1.0" in client.get("/metrics").text

    def seen_by(user: User) -> str:
        client.force_login(user)
        return client.get("/").content.decode()

    assert f"{sale.slug} (5 initial != 4 available" in seen_by(staff)
    assert sound.slug not in str(alerts.inconsistent_sales())
    assert "Stock mismatch" not in seen_by(customer)

    Stock.objects.filter(pk=sale.stock_id).update(quantity=5)
    tasks.audit_stock.apply()
    assert alerts.inconsistent_sales() == {}
    assert "shop_inconsistent_sales 0.0" in client.get("/metrics").text
    assert "Stock mismatch" not in seen_by(staff)


def test_metrics_show_the_last_audit_of_any_process(client, monkeypatch) -> None:
    sale = a_sale(stock=5)
    Stock.objects.filter(pk=sale.stock_id).update(quantity=4)
    alerts.audit_stock()
    assert "shop_inconsistent_sales 1.0" in client.get("/metrics").text
    with monkeypatch.context() as silent:
        silent.setattr(alerts, "caches", {"optional": SimpleNamespace(get=lambda key: None)})
        assert "shop_inconsistent_sales 1.0" in client.get("/metrics").text
    elsewhere = (timezone.now(), [])
    caches["optional"].set(alerts.KEY, elsewhere, timeout=None)  # as another process does
    assert "shop_inconsistent_sales 0.0" in client.get("/metrics").text
