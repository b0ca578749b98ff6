"""The operations page: who may do what, the switch of the lock, and what it shows how soon."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from html import unescape

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.test import Client
from django.test.utils import override_settings
from prometheus_client import REGISTRY

from devservers import Redis
from devservers.faults.waiting import until
from inventory.models import Product, Stock
from locking import locks, policy
from locking.models import LockPolicy, LockPolicyChange
from locking.names import ReservedName
from locking.policy import active
from shop.administration import alerts
from shop.models import Sale, User
from shop.operations import live
from shop.operations.live import get_live_state
from shop.settings.redis_retry import RetryOnce
from tests.shop.making import a_customer, a_sale, hidden_fields, put_in_force, signed_in, staff_with
from tests.shop.purchases import buy
from tests.shop.staff import CLOSED_PORT, held
from tests.shop.web.test_api import without_table

pytestmark = [pytest.mark.django_db, pytest.mark.stores]
seen_by_threads = pytest.mark.django_db(transaction=True)
SWITCH = {"backend": "database", "mode": "conditional", "reason": "maintenance"}


@pytest.fixture(autouse=True)
def few_backends(settings):
    """Keep only backends that respond at once; `redis` is active."""
    settings.LOCKS = {
        name: settings.LOCKS[name] for name in ("none", "process", "database", "redis")
    }
    settings.REDLOCK_URLS, settings.ZOOKEEPER_HOSTS = [], ""
    cache.clear()
    put_in_force("redis")
    yield
    policy.cancel_switch()
    for thread in threading.enumerate():
        if thread.name == "finish-switch":
            thread.join(60)


@pytest.fixture
def ben(db) -> Client:
    """Return the browser of staff without permissions."""
    return staff_with()


@pytest.fixture
def holder() -> Iterator[Callable[..., threading.Event]]:
    """`holder(name)` holds a lock until the test ends, or it is let go."""
    with ExitStack() as stack:
        yield lambda *of: stack.enter_context(held(*of))


def backend_in_force() -> str:
    return LockPolicy.objects.get(pk=1).backend


# --- Who may ---------------------------------------------------------------------------------


def test_page_is_for_staff_only(client, ben):
    customer = signed_in()
    for path in ("/ops/", "/ops/live/", "/ops/statistics/"):
        assert client.get(path)["Location"].startswith("/accounts/sign-in/")
        assert customer.get(path).status_code == 403
        assert ben.get(path).status_code == 200


@seen_by_threads
def test_page_shows_what_is_public_while_no_account_can_be_read(amy):
    """It asks for its live part again, which brings the whole page back."""
    with without_table("shop_user"):
        for path, headers in (("", {}), ("live/", {"HX-Request": "true"})):
            page = amy.get(f"/ops/{path}", headers=headers)
            assert (page.status_code, "A store did not respond in time." in page.text) == (
                200,
                True,
            )
            assert 'hx-get="/ops/live/"' in page.text
            assert ("<h1>" in page.text, "amy" in page.text) == (path == "", False)


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
    may = User.objects.get(username="none").user_permissions
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


# --- What it shows, and how long it waits --------------------------------------------------------


def test_sales_that_no_customer_finds_are_not_counted():
    """The sale of a load test is not listed; another one's product may be hidden."""
    a_sale()
    Sale.objects.filter(pk=a_sale().pk).update(is_listed=False)
    Product.objects.filter(pk=a_sale().product_id).update(is_listed=False)
    assert get_live_state().open_sales == 1


@seen_by_threads
@pytest.mark.parametrize("alias", ["redis", "database"])
def test_holder_and_lease_of_a_lock_are_shown(amy, holder, alias):
    put_in_force(alias, epoch=7)
    sale = a_sale()
    go = holder(f"sale:{sale.pk}")
    (row,) = (row for row in get_live_state().rows if row.sale == sale.slug)
    assert (row.backend, row.epoch, row.is_stale, row.held.count) == (alias, 7, False, 1)
    assert 0 < row.held.expires_in <= locks[alias].ttl
    page = amy.get("/ops/live/").text
    assert sale.slug in page
    assert row.held.owner in page
    go.set()
    until(lambda: live.invalidate() or not get_live_state().rows)


@seen_by_threads
def test_server_of_the_active_lock_that_is_down_is_shown_and_counted(amy, monkeypatch):
    backend = locks["redis"].backend
    monkeypatch.setattr(backend, "nodes_down", lambda: ["10.0.0.3:6379"])
    assert "stopped responding: 10.0.0.3:6379." in amy.get("/ops/live/").text
    alerts.update_metrics()
    assert REGISTRY.get_sample_value("shop_lock_nodes_down") == 1


@seen_by_threads
def test_lock_released_while_the_page_is_read_is_not_stale(holder, monkeypatch):
    """The next purchase raises the fence right after the holders were read."""
    sale = a_sale()
    go = holder(f"sale:{sale.pk}")
    backend, customer = locks["redis"], a_customer()
    list_holders = backend.inspect

    def list_then_sell():
        held = list_holders()
        go.set()
        if not buy(sale, customer=customer).replayed:
            sold.append(held)
        return held

    sold = []
    monkeypatch.setattr(backend, "inspect", list_then_sell)
    rows = get_live_state().rows
    assert f"sale:{sale.pk}" in [held.name for held in sold[0]], "it was held at first"
    assert [row.is_stale for row in rows if row.is_stale] == []


@seen_by_threads
def test_only_policy_locks_can_be_stale(holder):
    put_in_force("database")
    for name in map(ReservedName, ("build:home", "idempotency:x", "sale:1")):
        holder(name, "redis")
    stale = {row.held.name: row.is_stale for row in get_live_state().rows}
    assert stale == {"build:home": False, "idempotency:x": False, "sale:1": True}
    LockPolicy.objects.update(next_backend="redis")  # during a switch, both backends grant locks
    live.invalidate()
    assert not any(row.is_stale for row in get_live_state().rows)


@seen_by_threads
def test_holder_older_than_the_fence_is_stale(holder):
    sale = a_sale()
    holder(f"sale:{sale.pk}")
    Stock.objects.filter(pk=sale.stock_id).update(fence_epoch=2)
    assert [row.is_stale for row in get_live_state().rows] == [True]


def test_page_does_not_wait_for_a_hanging_backend(amy, monkeypatch):
    """The page names the backend that did not respond within the probe's limit."""
    hole = threading.Event()
    monkeypatch.setattr(locks["database"], "probe", lambda: hole.wait(30))
    began = time.monotonic()
    page = amy.get("/ops/").text
    took = time.monotonic() - began
    hole.set()
    assert "no reply in 1.5 s" in page
    assert "DOWN" in page
    assert took < 20, "loaded machines included; 1.6 s on a quiet one"


def test_page_does_not_wait_for_a_stopped_redis():
    """Sessions, shared pages and alerts all ask it; the page waits a few seconds in all."""
    with Redis() as server, _all_on(server):
        user = User.objects.create_superuser("amy")
        client = signed_in(user)
        assert client.get("/ops/").status_code == 200
        live.invalidate()
        server.pause()
        try:
            began = time.monotonic()
            page = client.get("/ops/")
            took = time.monotonic() - began
        finally:
            server.resume()
    assert page.status_code == 200
    assert "DOWN" in page.text
    assert took < 20, "36 s when every read waited; 1.3 s since one finds out for all"


def _all_on(server: Redis) -> override_settings:
    own = {"LOCATION": server.url}
    caches = {
        name: {**conf, **own, "OPTIONS": {**conf["OPTIONS"], "retry": RetryOnce(server.url)}}
        for name, conf in django_settings.CACHES.items()
    }
    urls = dict.fromkeys(("REDIS_URL", "QUEUE_REDIS_URL", "CACHE_URL"), server.url)
    return override_settings(CACHES=caches, **urls)


def test_no_lock_has_no_holders(amy):
    """Its holders were “unknown”."""
    put_in_force("none")
    page = amy.get("/ops/").text
    assert "No lock is held right now." in page
    assert "Locks whose holders can't be listed: process." in unescape(page)


def test_audit_is_shown(amy):
    assert "Not audited yet" in amy.get("/ops/").text
    sound, wrong = a_sale(stock=7), a_sale(stock=7)
    Stock.objects.filter(pk=wrong.stock_id).update(quantity=6)
    assert amy.post("/ops/audit/")["Location"] == "/ops/#stock-audit"
    page = amy.get("/ops/").text
    for text in (sound.slug, wrong.slug, "WRONG", "the row says 6"):
        assert text in page
