"""Chinese pages show no English: every word in Latin letters is a name or an identifier."""

import re
from html.parser import HTMLParser
from io import StringIO

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from loadtest.scenarios.course import COURSE
from shop.models import Order, Sale, User
from tests.shop.making import put_in_force
from tests.test_wording import banned_chinese

pytestmark = pytest.mark.django_db
CHINESE = {"accept-language": "zh-hans"}
NAMES = set(
    re.findall(
        r"\w+",
        """
        Redis RedLock ZooKeeper MySQL MariaDB SQLite PostgreSQL Celery Django Prometheus Cookie
        Redisson Curator Sentinel Spring Java Stream etcd kazoo nginx asyncio Web CP Kleppmann
        Python JSON CSV PNG SVG HTML SQL UTC URL ID SHA GIL CPU MB KB ms English
        INSERT UPDATE SELECT DELETE DEL SETNX EXPIRE SET NX PX PTTL EVALSHA SIGSTOP kill
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
VOID = {"input", "meta", "link", "br", "img", "hr", "source", "col", "wbr"}


class Texts(HTMLParser):
    """Collects the texts that a reader sees or hears, except code and what is marked English."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._skipping: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        is_button = tag == "input" and given.get("type") in ("submit", "button", "reset")
        if not self._skipping:
            names = SHOWN | {"value"} if is_button else SHOWN
            self.found += [given[name] or "" for name in names & given.keys()]
        is_other = tag in SKIPPED or str(given.get("lang", "zh")).startswith("en")
        if tag not in VOID and (self._skipping or is_other):
            self._skipping.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._skipping:
            while self._skipping.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._skipping:
            self.found.append(data)


def texts_of(html: str) -> list[str]:
    parser = Texts()
    parser.feed(html)
    return [" ".join(text.split()) for text in parser.found if text.strip()]


def english(html: str) -> set[str]:
    """Return the texts with words in Latin letters that are neither names nor identifiers."""
    found = set()
    for text in texts_of(html):
        tokens = re.findall(r"[A-Za-z][\w./:@=+'-]*", text, re.ASCII)
        words = [token.rstrip(".:'") for token in tokens]
        parts = [part for word in words if not IDENTIFIER.search(word) for part in word.split("-")]
        if any(len(part) > 1 and part not in NAMES for part in parts):
            found.add(text)
    return found


@pytest.fixture
def shop() -> None:
    put_in_force("redis")
    call_command("seed", stdout=StringIO())


def wrong(client: Client, paths: list[str]) -> dict[str, set[str]]:
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


@pytest.mark.usefixtures("shop")
def test_pages_of_the_shop_are_chinese() -> None:
    paths = [reverse("learn-step", args=[step.name]) for step in COURSE]
    paths += [
        reverse(name) for name in ("learn", "learn-grid", "home", "products", "login", "sign-up")
    ]
    paths += [sale.get_absolute_url() for sale in Sale.objects.all()]
    paths += [reverse("room", args=["backpack"]), reverse("learn-questions")]
    paths += [reverse("product", args=[Sale.objects.all()[0].product.slug]), "/nothing-here/"]
    assert wrong(Client(), paths) == {}


@pytest.mark.usefixtures("shop")
def test_pages_of_a_customer_are_chinese() -> None:
    client, order = Client(), Order.objects.all()[0]
    client.force_login(order.customer)
    paths = [reverse(name) for name in ("learn", "home", "orders", "profile", "password")]
    paths += [reverse("order", args=[order.number]), order.sale.get_absolute_url()]
    paths += [reverse("ops"), reverse("room", args=["backpack"])]  # 403, and the room
    assert wrong(client, paths) == {}


@pytest.mark.usefixtures("shop")
def test_pages_of_staff_are_chinese() -> None:
    client = Client()
    client.force_login(User.objects.get(username="amy"))
    paths = [reverse(name) for name in ("ops", "lab", "lab-command")]
    assert wrong(client, paths) == {}
    [texts] = wrong(client, [reverse("admin:shop_sale_add")]).values()
    assert texts == {"Add link", "Change or view list link", "Model name"}  # Django's own


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
