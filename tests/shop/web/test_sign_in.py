"""Sign-in and sign-up: their limits, known devices, and what they reveal about accounts."""

import re
import secrets
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from unittest.mock import patch

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.http import HttpResponse
from django.test import Client

from shop.errors import TooMany
from shop.models import User
from shop.platform import rate_limits
from tests.shop.making import PASSWORD, sign_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture(autouse=True)
def wang() -> User:
    return User.objects.create_user("wang", password=PASSWORD)


@pytest.fixture
def amy() -> User:
    return User.objects.create_superuser("amy", password=PASSWORD)


def at(address: str, via: str = "") -> Client:
    """Return a browser at an address; `via` is the header of a proxy, true or forged."""
    return Client(REMOTE_ADDR=address, headers={"X-Forwarded-For": via} if via else {})


def test_staff_sign_in_is_that_of_the_shop_with_its_limits(amy: User, settings) -> None:
    settings.SIGN_IN_FAILURE_LIMIT = "3/minute"
    client = Client()
    path = client.get("/admin/", follow=True).redirect_chain[-1][0]
    assert path == "/accounts/sign-in/?next=%2Fadmin%2F"
    form = {"username": "amy", "password": PASSWORD, "next": "/admin/"}
    for _ in range(3):
        assert client.post(path, {**form, "password": "wrong"}).status_code == 400
    # A forged header does not change the address; the correct password is refused, too.
    refused = client.post(path, form, headers={"X-Forwarded-For": "203.0.113.9"})
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 60
    assert sign_in(client, "unknown", "wrong").status_code == 400, "another name"
    settings.SIGN_IN_FAILURE_LIMIT = "9/minute"
    assert client.post(path, form)["Location"] == "/admin/"
    assert client.get("/admin/").status_code == 200


def test_parallel_sign_ins_do_not_exceed_the_limit(amy: User, settings) -> None:
    """Each request arrives while the previous one is still being checked."""
    settings.SIGN_IN_FAILURE_LIMIT = "3/minute"
    client, tried = Client(REMOTE_ADDR="203.0.113.77"), []

    def authenticate(self, request, username=None, password=None):
        tried.append(username)
        if len(tried) < 9:
            client.post("/accounts/sign-in/", {"username": username, "password": "wrong"})

    with patch.object(ModelBackend, "authenticate", authenticate):
        client.post("/accounts/sign-in/", {"username": "amy", "password": "wrong"})
    assert len(tried) == 3


def test_correct_password_is_not_counted(settings) -> None:
    settings.SIGN_IN_FAILURE_LIMIT = settings.SIGN_IN_NAME_LIMIT = "2/minute"
    assert statuses(*(Client() for _ in range(5))) == [302] * 5


def test_spellings_of_a_name_share_a_limit(amy, settings) -> None:
    """The form treats all but the last as "amy", MariaDB also the last."""
    settings.SIGN_IN_NAME_LIMIT = "4/minute"
    spellings = ["amy ", " " * 200 + "amy", "AMY", "\uff41my", "\U0001d41amy"]
    statuses = [sign_in(Client(), name, "wrong").status_code for name in spellings]
    assert statuses == [400, 400, 400, 400, 429]
    assert [sign_in(Client(), name).status_code for name in ("\u00e1my", "amy")] == [400, 429]


def statuses(*clients: Client) -> list[int]:
    return [sign_in(client).status_code for client in clients]


def test_sign_ins_are_limited_per_address(settings) -> None:
    """A customer has a whole network of IPv6."""
    settings.SIGN_IN_LIMIT = "2/minute"
    forging = [at("192.0.2.1", via=f"203.0.113.{number}") for number in range(3)]
    network = [at(f"2001:db8::{number}") for number in range(3)]
    others = [at("2001:db8:0:1::1"), *(at(f"::ffff:192.0.2.{number}") for number in range(7, 9))]
    assert statuses(*forging) == statuses(*network) == [302, 302, 429]
    assert statuses(*others) == [302, 302, 302]
    assert forging[0].post("/accounts/sign-up/", {}).status_code == 429


def test_client_address_is_read_behind_own_proxy(settings) -> None:
    settings.SIGN_IN_LIMIT, settings.PROXY_HOPS = "1/minute", 1
    seen = "198.51.100.1, 203.0.113.1", "198.51.100.2, 203.0.113.1", "203.0.113.1, 203.0.113.2"
    assert statuses(*(at("192.0.2.1", via=via) for via in seen)) == [302, 429, 302]


# --- known devices -----------------------------------------------------------------------------


def test_known_device_signs_in_while_its_name_is_locked(amy, settings):
    """Before, 100 wrong passwords from anywhere locked an account out of the sale."""
    settings.SIGN_IN_NAME_LIMIT, path = "3/minute", "/accounts/sign-in/"
    device, other = Client(), Client()
    strangers = [at(f"203.0.113.{number}") for number in range(4)]
    form = {"username": "\uff41my", "password": PASSWORD}
    assert device.post(path, form).status_code == 302
    assert sign_in(other).status_code == 302, "a device of another account"
    device.post("/accounts/sign-out/")
    other.post("/accounts/sign-out/")
    wrong = {**form, "password": "wrong"}
    assert [one.post(path, wrong).status_code for one in strangers] == [400, 400, 400, 429]
    assert [one.post(path, form).status_code for one in (*strangers, other)] == [429] * 5
    assert sign_in(Client(), "zhang", "wrong").status_code == 400, "another name"
    assert device.post(path, {**form, "username": "amy"}).status_code == 302


def test_stranger_at_the_same_address_does_not_lock_a_known_device_out(settings):
    """Many customers of a mobile network share an address."""
    settings.SIGN_IN_FAILURE_LIMIT = "2/minute"
    device, stranger = Client(), Client()
    assert sign_in(device).status_code == 302
    tried = [sign_in(stranger, "wang", "wrong").status_code for _ in range(3)]
    assert tried == [400, 400, 429]
    assert sign_in(stranger).status_code == 429
    assert sign_in(device).status_code == 302


def test_known_device_has_a_limit_of_its_own(settings):
    settings.SIGN_IN_NAME_LIMIT = "3/minute"
    device = Client()
    sign_in(device)
    assert [sign_in(device, "wang", "wrong").status_code for _ in range(4)] == [400] * 3 + [429]
    assert sign_in(Client()).status_code == 302, "it locks out no other device"
    settings.SIGN_IN_NAME_LIMIT, settings.SIGN_IN_FAILURE_LIMIT = "100/minute", "1/minute"
    statuses = [sign_in(device, "wang", "wrong").status_code for _ in range(2)]
    assert statuses == [400, 429], "the limit of its address applies"


def test_forged_device_is_unknown(settings):
    settings.SIGN_IN_NAME_LIMIT = "1/minute"
    device = Client()
    sign_in(device)
    cookie = device.cookies["device"]
    assert cookie["httponly"]
    assert cookie["samesite"]
    device.cookies["device"] = cookie.value.replace(":", "0:", 1)
    assert [sign_in(device, "wang", "wrong").status_code for _ in range(2)] == [400, 429]
    assert sign_in(Client()).status_code == 429


# --- what they reveal --------------------------------------------------------------------------


@pytest.fixture
def hashes() -> Iterator[list[str]]:
    """One entry for each slow hash."""
    made: list[str] = []

    def noting(name: str):
        real = getattr(Argon2PasswordHasher, name)
        return lambda *arguments: made.append(name) or real(*arguments)

    names = {name: noting(name) for name in ("encode", "verify")}
    with patch.multiple(Argon2PasswordHasher, **names):
        yield made


def without_secret(response: HttpResponse) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", response.text)


def test_sign_in_does_not_reveal_accounts(hashes: list[str]) -> None:
    """Known, unknown, deactivated, without a password: the same page after the same work."""
    User.objects.create_user("known", password=PASSWORD)
    User.objects.create_user("closed", password=PASSWORD, is_active=False)
    User.objects.create_user("guest", password=None)
    seen = set()
    for name in ("known", "closed", "guest", "unknown"):
        hashes.clear()
        response = sign_in(Client(), name, "wrong")
        seen.add((response.status_code, without_secret(response).replace(name, ""), len(hashes)))
    assert len(seen) == 1
    assert seen.pop()[2] == 1, "without a hash, the response time would reveal the account"


def test_sign_up_reveals_few_taken_names(settings) -> None:
    """Above the limit, free and taken names get the same response for every header value."""
    settings.SIGN_UP_TAKEN_LIMIT = "3/hour"
    User.objects.create_user("li", password=PASSWORD)

    def sign_up(name: str, password: str = PASSWORD, address: str = "203.0.113.1") -> int:
        form = {"username": name, "password1": password, "password2": password}
        forged = {"X-Forwarded-For": f"203.0.113.{next(numbers)}"}
        client = Client(REMOTE_ADDR=address)
        return client.post("/accounts/sign-up/", form, headers=forged).status_code

    numbers = count(9)
    # Other errors do not count; a taken name counts even with a bad password.
    assert [sign_up("new", "short") for _ in range(5)] == [400] * 5
    assert [sign_up("li"), sign_up("li", "short"), sign_up("zhou"), sign_up("LI")] == [
        400,
        400,
        302,
        400,
    ]
    assert [sign_up("li"), sign_up("zhang")] == [429, 429]
    assert not User.objects.filter(username="zhang").exists()
    assert sign_up("zhang", address="203.0.113.2") == 302


@pytest.mark.parametrize("uptime", [5.0, 5_000_000.0])
def test_repeated_requests_are_limited_from_the_start_of_the_machine(uptime, monkeypatch) -> None:
    """The window is longer than the time since the machine started."""
    monkeypatch.setattr(rate_limits.time, "monotonic", lambda: uptime)
    client = secrets.token_hex(8)
    rate_limits.count_repeated("2/hour", client)
    rate_limits.count_repeated("2/hour", client)
    with pytest.raises(TooMany):
        rate_limits.count_repeated("2/hour", client)


def test_count_is_taken_back_above_the_limit() -> None:
    """A correct password counts for nothing, no matter how many wrong ones came with it."""
    client = secrets.token_hex(8)
    for _ in range(4):
        with suppress(TooMany):
            rate_limits.count("2/hour", client)
    rate_limits.count("2/hour", client, cost=-1)
    with pytest.raises(TooMany):
        rate_limits.count("2/hour", client, cost=0)
