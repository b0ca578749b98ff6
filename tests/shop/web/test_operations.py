"""The operations page: who may do what; the switch of the lock, there and in the admin."""

import os
import re
import socket

import pytest
from django.contrib.auth.models import Permission

from devservers.faults.waiting import until
from locking import locks, policy
from locking.models import LockPolicy, LockPolicyChange
from locking.policy import active
from shop.administration import alerts
from shop.models import User
from tests.shop.making import a_customer, hidden_fields, signed_in, staff_with
from tests.shop.staff import (
    CLOSED_PORT,
    SWITCH,
    backend_in_force,
    ben,
    few_backends,
    holder,
    seen_by_threads,
)

__all__ = ["ben", "few_backends", "holder"]
pytestmark = [pytest.mark.django_db]


# --- Who may ---------------------------------------------------------------------------------


def test_page_is_for_staff_only(client, ben):
    customer = signed_in()
    for path in ("/ops/", "/ops/live/", "/ops/statistics/"):
        assert client.get(path)["Location"].startswith("/accounts/sign-in/")
        assert customer.get(path).status_code == 403
        assert ben.get(path).status_code == 200


def state() -> tuple[str, object]:
    """Return what the steps of the page change."""
    return LockPolicy.objects.get(pk=1).state, alerts.last_audit()


@seen_by_threads
@pytest.mark.parametrize(
    ("step", "permission"),
    [("switch", "switch_lock"), ("cancel", "switch_lock"), ("audit", "change_sale")],
)
def test_step_needs_staff_status_and_its_permission(ben, step, permission, monkeypatch):
    monkeypatch.setattr(active, "MAX_AGE", 60.0)  # no switch ends meanwhile
    if step == "cancel":
        policy.switch(backend="database", wait=False)
    customer, before = a_customer(), state()
    customer.user_permissions.add(Permission.objects.get(codename=permission))
    sent, form = {**SWITCH, "step": "drain"}, f'action="/ops/{step}/"'
    assert "read-only" in ben.get("/ops/").text
    for client in (ben, signed_in(customer)):
        assert form not in client.get("/ops/").text
        for how in ("drain", "force"):
            forced = {**sent, "step": how, "confirm": "database"}
            assert client.post(f"/ops/{step}/", forced).status_code == 403
        assert state() == before
    staff = staff_with(permission)
    assert form in staff.get("/ops/").text
    assert staff.post(f"/ops/{step}/", sent).status_code == 302
    assert state() != before


@seen_by_threads
def test_customers_are_shown_with_the_view_permission_only(ben, holder):
    holder("cart:4711")
    assert "cart:4711" not in ben.get("/ops/").text
    may = User.objects.get(username="ben").user_permissions
    may.add(Permission.objects.get(codename="view_heldlock"))
    assert "cart:4711" in (page := ben.get("/ops/").text)
    assert f"held by {socket.gethostname()}:{os.getpid()}<" in page
    assert "Break…" not in page
    may.add(Permission.objects.get(codename="release_lock"))
    (link,) = re.findall(r'href="([^"]+)"[^>]*>Break…', ben.get("/ops/").text)
    assert "Type “cart:4711” to confirm" in ben.get(link).text


# --- The switch ------------------------------------------------------------------------------


POLICY = "/admin/locking/lockpolicy/1/change/"


@pytest.fixture
def only_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no name is handed over before the cancellation."""
    monkeypatch.setattr("locking.policy.active.MAX_AGE", 60.0)


@seen_by_threads
@pytest.mark.usefixtures("only_announced")
@pytest.mark.parametrize("page", ["/ops/cancel/", POLICY])
def test_switch_can_be_cancelled_once(amy, holder, page):
    holder("sale:1")
    form = {"backend": "none", "mode": "fenced", "reason": "x", "step": "cancel"}
    assert 'value="cancel"' not in amy.get(POLICY).text
    amy.post("/ops/switch/", {**SWITCH, "step": "drain"})
    assert "in progress" in amy.post(POLICY, {**form, "step": "drain"}, follow=True).text
    assert 'value="cancel"' in amy.get(POLICY).text
    for said in ("Cancelled.", "No switch is in progress."):
        assert said in (told := amy.post(page, form, follow=True).text)
        assert "Switching from" not in told
        assert LockPolicy.objects.get().state == LockPolicy.State.STEADY
    assert (backend_in_force(), LockPolicyChange.objects.count()) == ("redis", 0)


@seen_by_threads
@pytest.mark.parametrize(("mode", "step"), [("conditional", "force"), ("naive", "drain")])
@pytest.mark.parametrize("page", ["/ops/switch/", POLICY])
def test_dangerous_switch_requires_the_typed_name(amy, page, mode, step):
    sent = {**SWITCH, "mode": mode, "step": step}
    asked = amy.post(page, sent)
    assert asked.status_code == 200
    assert "Type “database” to confirm" in asked.text
    assert f"database + {mode}" in asked.text
    if page != POLICY:
        assert f"Redis + conditional → database + {mode}" in asked.text
        assert '<button class="wide danger' in asked.text
    assert ("if the old backend is down" in asked.text) == (step == "force")
    assert ("Naive writes" in asked.text) == (mode == "naive")
    assert amy.post(page, {**sent, "confirm": "redis"}).status_code == 400
    assert (backend_in_force(), LockPolicy.objects.get().epoch) == ("redis", 1)
    assert amy.post(page, {**sent, "confirm": "database"}).status_code == 302
    until(lambda: backend_in_force() == "database")
    assert LockPolicy.objects.get().epoch == 2
    change = LockPolicyChange.objects.get()
    assert (change.changed_by, change.reason) == ("amy", "maintenance")
    assert change.forced == (step == "force")
    assert ("Overselling is possible" in amy.get(POLICY).text) == (mode == "naive")


def test_admin_offers_every_backend(amy):
    assert amy.get("/admin/locking/lockpolicy/")["Location"] == POLICY
    page = amy.get(POLICY).text
    assert [alias for alias in locks if f'<option value="{alias}"' not in page] == []


@seen_by_threads
def test_reason_of_a_switch_back_is_in_the_language_of_its_reader(amy):
    """What a person typed is shown as typed; “back” is also a word of the lab's charts."""
    amy.post("/ops/switch/", {**SWITCH, "step": "drain", "reason": "back"})
    until(lambda: backend_in_force() == "database")
    chinese = {"headers": {"Accept-Language": "zh-hans"}}
    statistics = amy.get("/ops/statistics/", **chinese).text
    assert "“back”" in statistics
    assert "“back”" in amy.get("/ops/", **chinese).text
    form = hidden_fields(statistics.partition('action="/ops/switch/"')[2])
    amy.post("/ops/switch/", {**form, "step": "drain"}, **chinese)
    until(lambda: backend_in_force() == "redis")
    for page in ("", "statistics/"):
        assert "“Switched back”" in amy.get(f"/ops/{page}").text
        assert "“切换回原来的锁”" in amy.get(f"/ops/{page}", **chinese).text


def test_switch_to_the_active_setting_is_refused(amy):
    """It began a drain, in which buyers wait for nothing."""
    active = {**SWITCH, "backend": "redis"}
    for step in ("drain", "force"):
        refused = amy.post("/ops/switch/", {**active, "step": step, "confirm": "redis"})
        assert refused.status_code == 400
        assert "Redis + conditional is already active." in refused.text
        assert LockPolicy.objects.get(pk=1).state == LockPolicy.State.STEADY


def test_invalid_switch_is_400(amy):
    before = LockPolicy.objects.values().get()
    for wrong in (
        {"backend": "paxos"},
        {"backend": ""},
        {"mode": "hopeful"},
        {"reason": ""},
        {"reason": "x" * 201},
        {"step": "explode"},
        {"step": ""},
        {"step": "force", "backend": "paxos"},
    ):
        sent = {**SWITCH, "step": "drain", **wrong}
        assert amy.post("/ops/switch/", sent).status_code == 400, wrong
        assert LockPolicy.objects.values().get() == before, wrong


def test_unavailable_target_is_reported(amy, settings):
    unavailable = {**settings.LOCKS["redis"], "LOCATION": CLOSED_PORT}
    settings.LOCKS = {**settings.LOCKS, "dead": unavailable}
    page = amy.post("/ops/switch/", {**SWITCH, "backend": "dead", "step": "drain"}).text
    assert "Nothing was changed:" in page
    assert 'value="maintenance"' in page, "what was typed is kept"
    assert LockPolicy.objects.get(pk=1).state == LockPolicy.State.STEADY
