"""The admin shows no English text of our own models to a reader of Chinese."""

import re
from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from inventory.models import Product
from locking import locks
from locking.models import HeldLock, IdempotencyKey, JobRun, LockPolicyChange
from shop.models import Order, Payment, RejectedReservation
from tests.shop.making import a_sale, buy
from tests.test_chinese_pages import english

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]

OUR_APPS = {"inventory", "locking", "loadtest", "shop"}
KEPT = re.compile("^(Search|True|False|Pk)$|[|] Can |按住 Control")
"""Icons, permissions, a key and a hint of Django."""


def pages() -> Iterator[str]:
    """Of each of our models: its list, the form of a new row, and its first row."""
    for model, of in admin.site._registry.items():
        if model._meta.app_label not in OUR_APPS:
            continue  # labelled by Django and django-celery-beat
        base = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        yield reverse(f"{base}_changelist")
        if type(of).has_add_permission is admin.ModelAdmin.has_add_permission:
            yield reverse(f"{base}_add")
        row = model._default_manager.first()
        assert row is not None, model
        yield reverse(f"{base}_change", args=[row.pk])


def test_pages_of_the_admin_are_chinese(amy: Client, shop: Client) -> None:
    sale, now = a_sale(), timezone.now()
    Product.objects.update(name="水壶")
    buy(shop, sale)
    Payment.objects.create(order=Order.objects.get(), amount=1, answer_by=now)
    RejectedReservation.objects.create(
        number="7", sale=sale, reason=RejectedReservation.Reason.FAILED
    )
    LockPolicyChange.objects.create(epoch=2, from_backend="none", to_backend="redis")
    JobRun.objects.create(digest="d", task="t", scheduled_for=now, lease_until=now, sent_at=now)
    IdempotencyKey.objects.create(
        digest="d", user="u", fingerprint="f", status=200, headers={}, body=b"", created_at=now
    )
    HeldLock.objects.create(pk="redis 报表:7", name="报表:7")  # the row stands for a held lock
    found = {}
    with locks["redis"].lock("报表:7"):
        for path in pages():
            page = amy.get(path, follow=True, headers={"accept-language": "zh-hans"})
            assert page.status_code == 200, path
            found[path] = {text for text in english(page.text) if not KEPT.search(text)}
    assert {path: texts for path, texts in found.items() if texts} == {}
