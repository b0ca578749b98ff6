"""Scheduled work of the shop, and its schedule."""

from datetime import timedelta
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from celery import current_app
from django.conf import settings
from django.contrib.sessions.models import Session
from django.core.cache import cache
from django.utils import timezone
from redis.exceptions import RedisError

from inventory.models import Stock
from locking.jobs.delivery import is_run_once
from shop import tasks
from shop.administration import alerts
from shop.models import User
from tests.shop.making import a_sale

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("in_force")]


def test_every_scheduled_task_exists_has_limits_and_runs_once() -> None:
    current_app.loader.import_default_modules()
    for name, entry in settings.CELERY_BEAT_SCHEDULE.items():
        task = current_app.tasks[entry["task"]]
        assert task.soft_time_limit < task.time_limit, name
        assert task.time_limit < settings.CELERY_BROKER_TRANSPORT_OPTIONS["visibility_timeout"]
        assert is_run_once(task) or name == "resend-unfinished-runs", name
        assert task.acks_late, name
        assert task.reject_on_worker_lost, name


def test_expired_sessions_are_deleted() -> None:
    for key, hours in (("over", -1), ("good", 1)):
        ends = timezone.now() + timedelta(hours=hours)
        Session.objects.create(session_key=key, session_data="", expire_date=ends)
    tasks.prune_sessions()
    assert [session.pk for session in Session.objects.all()] == ["good"]


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
        silent.setattr(alerts, "cache", SimpleNamespace(get=Mock(side_effect=RedisError)))
        assert "shop_inconsistent_sales 1.0" in client.get("/metrics").text
    elsewhere = (timezone.now(), [])
    cache.set(alerts.KEY, elsewhere, timeout=None)  # as another process does
    assert "shop_inconsistent_sales 0.0" in client.get("/metrics").text
