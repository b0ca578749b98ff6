"""Staff switch the lock in Django's admin."""

import pytest

from locking import locks, policy
from locking.models import LockPolicy, LockPolicyChange
from tests.shop.making import put_in_force

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]


POLICY = "/admin/locking/lockpolicy/1/change/"


@pytest.mark.django_db(transaction=True)
def test_staff_switch_the_lock(amy):
    put_in_force("redis")  # which can tell that it has no holders
    assert amy.get("/admin/locking/lockpolicy/")["Location"] == POLICY
    page = amy.get(POLICY).text
    for alias in locks:
        assert f'<option value="{alias}"' in page
    form = {"backend": "none", "mode": "naive", "reason": "to show it", "step": "drain"}
    amy.post(POLICY, {**form, "confirm": "none"})
    now = policy.current()
    assert (now.backend, now.mode, now.epoch) == ("none", "naive", 2)
    change = LockPolicyChange.objects.get()
    assert (change.changed_by, change.reason, change.forced) == ("amy", "to show it", False)
    assert "Overselling is possible" in amy.get(POLICY).text


def test_switch_is_cancelled(amy):
    put_in_force("redis")
    assert 'value="cancel"' not in amy.get(POLICY).text
    policy.switch(backend="none", wait=False)
    assert 'value="cancel"' in amy.get(POLICY).text
    form = {"backend": "none", "mode": "fenced", "reason": "x", "step": "drain"}
    assert "in progress" in amy.post(POLICY, form, follow=True).text
    amy.post(POLICY, {**form, "step": "cancel"})
    assert LockPolicy.objects.get().state == LockPolicy.State.STEADY
    assert (
        "No switch is in progress."
        in amy.post(POLICY, {**form, "step": "cancel"}, follow=True).text
    )


DANGEROUS = {
    "force": {"backend": "redis", "mode": "conditional", "step": "force"},
    "naive": {"backend": "redis", "mode": "naive", "step": "drain"},
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("danger", DANGEROUS)
def test_dangerous_switch_requires_the_typed_name(amy, danger):
    put_in_force("database")  # which can list its holders
    form = {**DANGEROUS[danger], "reason": "to show it"}
    asked = amy.post(POLICY, form)
    assert asked.status_code == 200
    assert f"Type “{form['backend']}” to confirm" in asked.text
    assert ("Naive writes allow overselling" in asked.text) == (form["mode"] == "naive")
    assert ("if the old backend is down" in asked.text) == (form["step"] == "force")
    assert LockPolicy.objects.get().epoch == 1
    assert amy.post(POLICY, {**form, "confirm": form["backend"]})["Location"] == POLICY
    row = LockPolicy.objects.get()
    assert (row.backend, row.mode, row.epoch) == (form["backend"], form["mode"], 2)
