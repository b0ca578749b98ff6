"""The operations page: who may do what, what it shows, what it costs."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import Permission
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext, override_settings
from django.utils import timezone

from inventory.models import Stock
from loadtest.servers import Redis
from locking import lock, locks, policy
from locking.models import JobRun, LockPolicy, LockPolicyChange
from shop import probing
from shop.alerts import audit_and_alert
from shop.models import User
from shop.operations import live
from shop.operations.live import see_live
from tests.shop.making import a_customer, a_sale, put_in_force

pytestmark = [pytest.mark.django_db, pytest.mark.stores]
seen_by_threads = pytest.mark.django_db(transaction=True)

NOBODY = "redis://127.0.0.1:9/0"
SWITCH = {"backend": "database", "discipline": "conditional", "reason": "maintenance"}


@pytest.fixture(autouse=True)
def shop(settings):
    settings.LOCKS = {
        name: settings.LOCKS[name] for name in ("none", "process", "database", "redis")
    }
    settings.REDLOCK_URLS, settings.ZOOKEEPER_HOSTS = [], ""
    cache.clear()
    put_in_force("redis")
    yield
    policy.cancel_switch()


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def amy() -> Client:
    return signed_in(User.objects.create_superuser("amy"))


@pytest.fixture
def ben() -> Client:
    """Staff who may only look."""
    return signed_in(User.objects.create(username="ben", is_staff=True))


def until(condition, seconds: float = 15.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.02)
    return found


def backend_in_force() -> str:
    return LockPolicy.objects.get(pk=1).backend


@pytest.fixture
def holder():
    """`holder(name)` holds a lock in a thread of its own until the test ends, or it is let go."""
    ended: list[tuple[threading.Event, threading.Thread]] = []

    def hold(name: str, alias: str = "") -> threading.Event:
        go, has = threading.Event(), threading.Event()

        def run() -> None:
            guard = locks[alias].lock(name) if alias else lock(name)
            with guard:
                has.set()
                go.wait(60)
            connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        ended.append((go, thread))
        assert has.wait(10)
        return go

    yield hold
    for go, thread in ended:
        go.set()
        thread.join(20)


# --- Who may ---------------------------------------------------------------------------------


def test_for_staff_alone(client, ben):
    customer = signed_in(a_customer())
    for path in ("/ops/", "/ops/live/", "/ops/rest/"):
        assert client.get(path)["Location"].startswith("/accounts/sign-in/")
        assert customer.get(path).status_code == 403
        assert ben.get(path).status_code == 200


def test_who_may_only_look_gets_no_forms_and_changes_nothing(ben):
    page = ben.get("/ops/").text
    assert "read-only" in page
    assert "/ops/switch/" not in page
    for step in ("check", "drain", "force"):
        sent = {**SWITCH, "step": step, "confirm": "database"}
        assert ben.post("/ops/switch/", sent).status_code == 403
    policy.begin_switch(backend="database")
    assert ben.post("/ops/cancel/").status_code == 403
    assert "/ops/cancel/" not in ben.get("/ops/").text
    assert LockPolicy.objects.get(pk=1).state == LockPolicy.State.DRAINING


def test_the_right_to_switch_without_being_staff_is_none():
    user = a_customer()
    user.user_permissions.add(Permission.objects.get(codename="switch_lock"))
    assert signed_in(user).post("/ops/switch/", {**SWITCH, "step": "drain"}).status_code == 403
    assert backend_in_force() == "redis"


def test_a_form_from_elsewhere_is_refused():
    client = Client(enforce_csrf_checks=True)
    client.force_login(User.objects.create_superuser("amy"))
    for path in ("/ops/switch/", "/ops/cancel/", "/ops/audit/"):
        assert client.post(path, {**SWITCH, "step": "drain"}).status_code == 403
        assert client.get(path).status_code == 405
    assert backend_in_force() == "redis"


# --- The switch ------------------------------------------------------------------------------


@seen_by_threads
def test_a_switch_drains_and_the_page_tells_how_far_it_is(amy, holder):
    go = holder("sale:1")
    assert amy.post("/ops/switch/", {**SWITCH, "step": "drain"}).status_code == 302
    page = amy.get("/ops/live/").text
    assert "DRAINING" in page
    assert "1 holder left" in page
    assert backend_in_force() == "redis"
    go.set()
    until(lambda: backend_in_force() == "database")
    live.forget()
    page = amy.get("/ops/").text
    assert "database + conditional" in page
    assert "maintenance" in page
    assert "Back to redis + conditional" in page
    change = LockPolicyChange.objects.get()
    assert (change.changed_by, change.forced, change.epoch) == ("amy", False, 2)


@seen_by_threads
def test_one_click_leads_back(amy):
    policy.switch(backend="database", reason="there", force=True)
    sent = {"backend": "redis", "discipline": "conditional", "reason": "back", "step": "drain"}
    amy.post("/ops/switch/", sent)
    until(lambda: backend_in_force() == "redis")
    assert LockPolicy.objects.get(pk=1).epoch == 3


@seen_by_threads
def test_a_switch_is_cancelled_and_the_page_says_so(amy, holder):
    holder("sale:1")
    amy.post("/ops/switch/", {**SWITCH, "step": "drain"})
    assert amy.post("/ops/cancel/").status_code == 302
    page = amy.get("/ops/").text
    assert "was cancelled" in page
    assert "DRAINING" not in page
    assert (backend_in_force(), LockPolicyChange.objects.count()) == ("redis", 0)
    amy.post("/ops/cancel/")
    assert "No switch was under way." in amy.get("/ops/").text


@seen_by_threads
def test_force_asks_for_the_name_and_waits_for_nobody(amy, holder):
    holder("sale:1")
    asked = amy.post("/ops/switch/", {**SWITCH, "step": "force"})
    assert asked.status_code == 200
    assert "Type “database”" in asked.text
    assert "fault" not in asked.text
    for typed in ("", "redis", "Database"):
        refused = amy.post("/ops/switch/", {**SWITCH, "step": "force", "confirm": typed})
        assert refused.status_code == 400
        assert "fault" in refused.text
        assert backend_in_force() == "redis"
    sent = {**SWITCH, "step": "force", "confirm": "database"}
    assert amy.post("/ops/switch/", sent).status_code == 302
    assert backend_in_force() == "database"
    assert LockPolicyChange.objects.get().forced
    page = amy.get("/ops/").text
    assert "STALE" in page, "who held a lock before the switch"


def test_what_is_no_switch_changes_nothing(amy):
    before = LockPolicy.objects.values().get()
    for wrong in (
        {"backend": "paxos"},
        {"backend": ""},
        {"discipline": "hopeful"},
        {"reason": ""},
        {"reason": "x" * 201},
        {"step": "explode"},
        {"step": ""},
        {"step": "force", "backend": "paxos"},
    ):
        sent = {**SWITCH, "step": "drain", **wrong}
        assert amy.post("/ops/switch/", sent).status_code == 400, wrong
        assert LockPolicy.objects.values().get() == before, wrong


def test_a_target_that_is_dead_is_found_by_check_and_by_drain(amy, settings):
    dead = {**settings.LOCKS["redis"], "LOCATION": NOBODY}
    settings.LOCKS = {**settings.LOCKS, "dead": dead}
    for step in ("check", "drain"):
        page = amy.post("/ops/switch/", {**SWITCH, "backend": "dead", "step": step}).text
        assert "Nothing was changed:" in page
        assert 'value="maintenance"' in page, "what was typed is kept"
    assert "database answers" in amy.post("/ops/switch/", {**SWITCH, "step": "check"}).text
    assert LockPolicy.objects.get(pk=1).state == LockPolicy.State.STEADY


# --- What it shows ---------------------------------------------------------------------------


@seen_by_threads
@pytest.mark.parametrize("alias", ["redis", "database"])
def test_who_holds_what(amy, holder, alias):
    put_in_force(alias, epoch=7)
    sale = a_sale()
    go = holder(f"sale:{sale.pk}")
    (row,) = (row for row in see_live().rows if row.sale == sale.slug)
    assert (row.backend, row.epoch, row.is_stale, row.held.count) == (alias, 7, False, 1)
    assert 0 < row.held.expires_in <= locks[alias].ttl
    page = amy.get("/ops/live/").text
    assert sale.slug in page
    assert row.held.owner in page
    go.set()
    until(lambda: live.forget() or all(row.is_free for row in see_live().rows))
    assert [row.sale for row in see_live().rows] == [sale.slug]


@seen_by_threads
def test_a_holder_whom_the_stock_row_would_refuse_is_stale(holder):
    sale = a_sale()
    holder(f"sale:{sale.pk}")
    Stock.objects.filter(pk=sale.stock_id).update(fence_epoch=2)
    assert [row.is_stale for row in see_live().rows] == [True]


@seen_by_threads
def test_each_segment_has_a_lock_and_a_fence_of_its_own(holder):
    sale = a_sale(stock=2, segments=2)
    first, second = sale.rows
    holder(f"sale:{sale.pk}:{second.pk}")
    for row, is_stale in ((first, False), (second, True)):
        Stock.objects.filter(pk=row.pk).update(fence_epoch=2)
        held, free = see_live().rows
        assert (held.held.name, held.sale) == (f"sale:{sale.pk}:{second.pk}", sale.slug)
        assert (held.is_stale, held.is_free) == (is_stale, False)
        assert (free.held.name, free.sale, free.is_free) == (f"sale:{sale.pk}", sale.slug, True)
        live.forget()


@seen_by_threads
def test_what_stays_in_a_backend_of_its_own_is_not_stale(holder):
    put_in_force("database")
    for name in ("build:home", "idempotency:x", "sale:1"):
        holder(name, "redis")
    stale = {row.held.name: row.is_stale for row in see_live().rows}
    assert stale == {"build:home": False, "idempotency:x": False, "sale:1": True}


@seen_by_threads
def test_filters_and_search(amy, holder):
    holder("sale:1")
    holder("job:audit", "database")
    waiter = threading.Thread(target=locks["redis"].lock("sale:1").acquire, args=(True, 3))
    waiter.start()
    until(lambda: live.forget() or any(row.held.waiters for row in see_live().rows))

    def names(query: str) -> list[str]:
        text = amy.get(f"/ops/live/?{query}").text.partition('id="traffic"')[0]
        return [name for name in ("sale:1", "job:audit") if f">{name}" in text]

    assert names("show=waiting") == ["sale:1"]
    waiter.join(10)
    live.forget()
    assert names("") == names("show=all") == names("show=nonsense") == ["sale:1", "job:audit"]
    assert names("show=held") == ["sale:1", "job:audit"]
    assert names("show=stale") == ["job:audit"]
    assert names("q=AUDIT") == ["job:audit"]
    assert names("q=nobody") == []


def test_rate_and_pause(amy):
    assert "every 2s" in amy.get("/ops/").text
    assert "every 5s" in amy.get("/ops/live/?rate=5").text
    assert "every 2s" in amy.get("/ops/live/?rate=-1").text
    paused = amy.get("/ops/?rate=0").text
    assert "hx-trigger" not in paused
    assert "paused" in paused


def test_the_rates_are_those_since_the_last_look():
    for _ in range(2):
        until(lambda: live.forget() or see_live().span)
        for _ in range(50):
            with lock("rated:1"):
                pass
        live.forget()
        seen = see_live()
        (row,) = (row for row in seen.traffic if row.kind == "rated")
        assert row.per_second == pytest.approx(50 / seen.span)
        assert 0 < row.p50_ms <= row.p99_ms <= 10_000


def test_a_store_that_hangs_does_not_hang_the_page(amy, monkeypatch):
    """A black hole: the others are told within a second or two, with who did not answer."""
    hole = threading.Event()
    monkeypatch.setattr(locks["database"], "probe", lambda: hole.wait(30))
    begun = time.monotonic()
    page = amy.get("/ops/").text
    took = time.monotonic() - begun
    hole.set()
    assert "no answer in 1.5 s" in page
    assert "DOWN" in page
    assert took < 10, "loaded machines included; 1.6 s on a quiet one"


def test_a_redis_that_is_stopped_does_not_hang_the_page():
    """Sessions, shared pages and alerts all ask it; the page waits a few seconds in all."""
    with Redis() as server, override_settings(REDIS_URL=server.url, CACHES=_caches_on(server)):
        user = User.objects.create_superuser("amy")
        client = signed_in(user)
        assert client.get("/ops/").status_code == 200
        live.forget()
        server.pause()
        try:
            begun = time.monotonic()
            page = client.get("/ops/")
            took = time.monotonic() - begun
        finally:
            server.resume()
    assert page.status_code == 200
    assert "DOWN" in page.text
    assert took < 15, "36 s when every read waited; 6 s on a quiet machine"


def _caches_on(server: Redis) -> dict[str, dict]:
    return {name: {**conf, "LOCATION": server.url} for name, conf in django_settings.CACHES.items()}


def test_nodes_are_counted(settings, amy):
    settings.REDLOCK_URLS = [settings.REDIS_URL, NOBODY]
    settings.LOCKS = {
        **settings.LOCKS,
        "redlock": {
            "BACKEND": "locking.backends.redlock.RedLockBackend",
            "LOCATION": settings.REDLOCK_URLS,
        },
    }
    (store,) = (store for store in see_live().stores if store.name == "redlock")
    assert (store.nodes, store.ok) == ("1/2", False), "no majority"


def test_zookeepers_servers_are_asked(zookeeper):
    for host in zookeeper.hosts.split(","):
        live._ask_zookeeper(host)
    with pytest.raises(OSError):  # noqa: PT011 - refused
        live._ask_zookeeper("127.0.0.1:9")


def test_a_probe_that_fails_is_told_by_its_kind():
    found = probing.probe_all({"good": lambda: 7, "bad": lambda: 1 / 0}, seconds=5)
    assert (found["good"].ok, found["good"].value) == (True, 7)
    assert (found["bad"].ok, found["bad"].error) == (False, "ZeroDivisionError")


def test_books_and_jobs(amy):
    assert "Not audited yet" in amy.get("/ops/").text
    sound, wrong = a_sale(stock=7), a_sale(stock=7)
    Stock.objects.filter(pk=wrong.stock_id).update(quantity=6)
    now = timezone.now()
    JobRun.objects.create(
        digest="d",
        task="shop.tasks.audit_stock",
        scheduled_for=now - timedelta(seconds=3),
        state=JobRun.State.FAILED,
        host="web-7",
        lease_until=now,
        sent_at=now,
        duplicates=2,
    )
    assert amy.post("/ops/audit/")["Location"] == "/ops/#books"
    page = amy.get("/ops/").text
    for told in (
        sound.slug,
        wrong.slug,
        "WRONG",
        "the row says 6",
        "shop.tasks.audit_stock",
        "web-7",
    ):
        assert told in page


def test_queued_sales(amy):
    sale = a_sale(fulfilment="queued", stock=12)
    audit_and_alert()
    page = amy.get("/ops/rest/").text
    assert sale.slug in page


# --- What it costs ---------------------------------------------------------------------------


@seen_by_threads
def test_a_poll_asks_the_database_little(amy, holder):
    holder(f"sale:{a_sale().pk}")
    amy.get("/ops/live/")
    with CaptureQueriesContext(
        connection,
    ) as first:
        live.forget()
        amy.get("/ops/live/")
    assert len(first) <= 6, [one["sql"] for one in first]
    see_live()
    with CaptureQueriesContext(connection) as again:
        amy.get("/ops/live/")
    assert len(again) <= 3, [one["sql"] for one in again]
    amy.get("/ops/rest/")
    live.forget()
    with CaptureQueriesContext(connection) as rest:
        amy.get("/ops/rest/")
    assert len(rest) <= 8, [one["sql"] for one in rest]
