"""Chinese pages show no English: every word in Latin letters is a name or an identifier."""

import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from django.contrib import admin
from django.core.management import call_command
from django.db.models import F
from django.test import Client
from django.test.html import parse_html
from django.urls import reverse
from django.utils import timezone

from inventory.models import Product, Stock, StockMovement
from loadtest.scenarios.course import COURSE
from locking import locks
from locking.models import HeldLock, IdempotencyKey, JobRun, LockPolicyChange
from shop.administration.alerts import audit_stock
from shop.models import Order, Payment, RejectedReservation, Sale, User
from tests.shop.making import put_in_force, signed_in
from tests.test_wording import banned_chinese

pytestmark = pytest.mark.django_db
CHINESE = {"accept-language": "zh-hans"}
NAMES = set(
    re.findall(
        r"\w+",
        """
        Redis RedLock ZooKeeper MySQL MariaDB SQLite PostgreSQL Celery Django Prometheus Cookie
        Redisson Curator Sentinel Spring Java Stream etcd kazoo nginx asyncio Web CP Kleppmann
        Python JSON CSV PNG JPEG WebP SVG HTML SQL LDAP UTC URL ID IP SHA GIL CPU MB KB ms English
        INSERT UPDATE SELECT DELETE DEL SETNX EXPIRE SET NX PX PTTL EVALSHA SIGSTOP kill
        DECR INCR INCRBY EXISTS RPUSH LPOP XADD XDEL OK
        Lua Overloaded SoldOut ServiceUnavailable Martin Kleppmann Salvatore Sanfilippo
        none process database redis redlock zookeeper naive fenced conditional
        worker beat web consumer sqlite mariadb static products path admin
        li wang zhang amy ben guest
        """,
    )
)
"""Products, statements, identifiers of code, accounts of the demo."""
SKIPPED = {"script", "style", "code", "kbd", "pre", "samp", "template", "textarea"}
SHOWN = {"aria-label", "title", "placeholder", "alt"}
IDENTIFIER = re.compile(r"[\d_:/=@.+]")


def texts_of(html: str) -> list[str]:
    """Return what a reader sees or hears, except code and what is marked English."""
    return [" ".join(text.split()) for text in _texts(parse_html(html)) if text.strip()]


def _texts(element: Any) -> Iterator[str]:
    if isinstance(element, str):
        yield element
        return
    given = dict(element.attributes)
    is_button = element.name == "input" and given.get("type") in ("submit", "button", "reset")
    names = SHOWN | {"value"} if is_button else SHOWN
    yield from (given[name] or "" for name in names & given.keys())
    if element.name not in SKIPPED and not str(given.get("lang", "zh")).startswith("en"):
        for child in element.children:
            yield from _texts(child)


def english(html: str) -> set[str]:
    """Return the texts with words in Latin letters that are neither names nor identifiers.

    Also those with a space between two Chinese words, unless the first one is a unit.
    """
    found = {text for text in texts_of(html) if re.search("(?<!\\d )[一-龥] [一-龥]", text)}
    for text in texts_of(html):
        tokens = re.findall(r"\b[A-Za-z][\w./:@=+'-]*", text, re.ASCII)
        words = [token.rstrip(".:'") for token in tokens]
        parts = [part for word in words if not IDENTIFIER.search(word) for part in word.split("-")]
        if any(len(part) > 1 and part not in NAMES for part in parts):
            found.add(text)
    return found


def wrong(client: Client, *paths: str) -> dict[str, set[str]]:
    """Return the English or unidiomatic texts of each page."""
    found = {}
    for path in paths:
        response = client.get(path, headers=CHINESE)
        html = response.content.decode()
        assert "zh" in response.headers["Content-Language"], path
        unidiomatic = {text for text in texts_of(html) if banned_chinese(text)}
        if texts := english(html) | unidiomatic:
            found[path] = texts
    return found


@pytest.fixture
def staff() -> Client:
    """The browser of staff of the seeded shop."""
    put_in_force("redis")
    call_command("seed", stdout=StringIO())
    return signed_in(User.objects.get(username="amy"))


def test_pages_are_chinese(staff: Client) -> None:
    """Of visitors, a customer and staff."""
    sales, order = list(Sale.objects.all()), Order.objects.all()[0]
    names = ("learn", "learn-grid", "learn-questions", "home", "products", "login", "sign-up")
    paths = [reverse("learn-step", args=[step.name]) for step in COURSE]
    paths += [*map(reverse, names), *(sale.get_absolute_url() for sale in sales)]
    paths += [reverse("product", args=[sales[0].product.slug]), "/nothing-here/"]
    room = reverse("room", args=["backpack"])
    assert wrong(Client(), *paths, room) == {}
    names = ("home", "orders", "profile", "password", "ops")  # the last one is 403
    paths = [reverse("order", args=[order.number]), order.sale.get_absolute_url(), room]
    assert wrong(signed_in(order.customer), *map(reverse, names), *paths) == {}
    names = ("ops", "lab", "lab-command", "admin:shop_sale_add")
    assert wrong(staff, *map(reverse, names)) == {}
    Sale.objects.filter(pk=order.sale_id).update(slug="7")  # a slug is no text
    StockMovement.objects.filter(stock=order.sale.stock_id, reason="reserved").delete()
    Stock.objects.filter(pk=order.sale.stock_id).update(quantity=F("quantity") + 1)
    audit_stock()
    assert "≠" in staff.get("/", headers=CHINESE).text  # the banner of an inconsistent sale
    assert wrong(staff, "/", reverse("ops")) == {}


OUR_APPS = {"inventory", "locking", "loadtest", "shop"}
OF_DJANGO = re.compile("^(Search|True|False|Pk)$|[|] Can |按住 Control")
"""Icons, permissions, a key and a hint of the admin."""


def pages_of_the_admin() -> Iterator[str]:
    """Of each of our models: its list, the form of a new row, and its first row."""
    for model, of in admin.site._registry.items():
        if model._meta.app_label in OUR_APPS:  # Django and django-celery-beat label the others
            base = f"admin:{model._meta.app_label}_{model._meta.model_name}"
            yield reverse(f"{base}_changelist")
            if type(of).has_add_permission is admin.ModelAdmin.has_add_permission:
                yield reverse(f"{base}_add")
            yield reverse(f"{base}_change", args=[model._default_manager.all()[0].pk])


def test_pages_of_the_admin_are_chinese(staff: Client) -> None:
    sale, now = Sale.objects.all()[0], timezone.now()
    Product.objects.update(name="水壶")
    Payment.objects.update(provider_id="7")
    Sale.objects.update(slug=F("pk"))  # neither a slug nor a hash is text
    User.objects.update(password="!")  # noqa: S106
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
        for path in pages_of_the_admin():
            page = staff.get(path, follow=True, headers=CHINESE)
            assert page.status_code == 200, path
            found[path] = {text for text in english(page.text) if not OF_DJANGO.search(text)}
    assert {path: texts for path, texts in found.items() if texts} == {}


FOUND = {
    "<p>立即抢购 Buy now</p>": {"立即抢购 Buy now"},
    '<input placeholder="Search"><input type="submit" value="Save">': {"Search", "Save"},
    '<input type="hidden" value="token"><a lang="en">English page</a>': set(),
    "<p>Redis 锁 <code>manage.py lab</code> sale:42</p>": set(),
    "<pre>one <b>two</b> three</pre><td>ok</td><td>s</td>": {"ok"},
}


def test_english_is_found() -> None:
    """The control."""
    assert {html: english(html) for html in FOUND} == FOUND
