"""Staff switch the lock in Django's admin."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from locking import LockUnavailable, locks, policy
from locking.models import LockPolicy, LockPolicyChange
from shop.models import User
from tests.shop.making import put_in_force, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


POLICY = "/admin/locking/lockpolicy/1/change/"


@pytest.mark.django_db(transaction=True)
def test_staff_switch_the_lock(amy):
    put_in_force("redis")  # which can tell that it has no holders
    assert amy.get("/admin/locking/lockpolicy/")["Location"] == POLICY
    page = amy.get(POLICY).text
    for alias in locks:
        assert f"<th>{alias}</th>" in page
    form = {"backend": "none", "strategy": "naive", "reason": "to show it", "step": "drain"}
    amy.post(POLICY, form)
    now = policy.current()
    assert (now.backend, now.strategy, now.epoch) == ("none", "naive", 2)
    change = LockPolicyChange.objects.get()
    assert (change.changed_by, change.reason, change.forced) == ("amy", "to show it", False)
    assert "can sell more than it has" in amy.get(POLICY).text


def test_failed_switch_shows_its_cause(amy):
    form = {"backend": "redis", "strategy": "fenced", "reason": "x", "step": "force"}
    with patch.object(locks["redis"], "probe", side_effect=LockUnavailable("redis is down")):
        assert "edis is down" in amy.post(POLICY, form, follow=True).text
    assert amy.post(POLICY, {**form, "backend": "nonsense"}).status_code == 200
    assert amy.post(POLICY, {**form, "reason": ""}).status_code == 200
    assert LockPolicy.objects.get().backend == "process"


def test_switch_is_cancelled(amy):
    policy.switch(backend="none", wait=False)
    form = {"backend": "none", "strategy": "naive", "reason": "x", "step": "drain"}
    assert "in progress" in amy.post(POLICY, form, follow=True).text
    amy.post(POLICY, {**form, "step": "cancel"})
    assert LockPolicy.objects.get().state == LockPolicy.State.STEADY


def test_switching_requires_its_permission():
    client = signed_in(User.objects.create(username="bo", is_staff=True))
    assert client.get(POLICY).status_code == 403
    form = {"backend": "none", "strategy": "naive", "reason": "x", "step": "force"}
    assert client.post(POLICY, form).status_code == 403
    assert LockPolicy.objects.get().backend == "process"
