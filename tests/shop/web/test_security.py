"""Sign-in of staff, accounts and orders that cannot be enumerated, permissions, headers."""

import re
from collections.abc import Iterator
from itertools import count
from unittest.mock import patch

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.hashers import Argon2PasswordHasher
from django.http import HttpResponse
from django.test import Client

from shop.models import Order, User
from tests.shop.making import signed_in

pytestmark = pytest.mark.django_db
PASSWORD = "a-red-kettle-9"  # noqa: S105
UNKNOWN_USER = {"username": "unknown", "password": "wrong"}


@pytest.fixture
def amy() -> User:
    return User.objects.create_superuser("amy", password=PASSWORD)


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
    assert client.post(path, UNKNOWN_USER).status_code == 400, "another name"
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


def test_correct_password_is_not_counted(amy: User, settings) -> None:
    settings.SIGN_IN_FAILURE_LIMIT = settings.SIGN_IN_NAME_LIMIT = "2/minute"
    form = {"username": "amy", "password": PASSWORD}
    assert [Client().post("/accounts/sign-in/", form).status_code for _ in range(5)] == [302] * 5


def test_spellings_of_a_name_share_a_limit(amy: User, settings) -> None:
    """The form treats all but the last as "amy", MariaDB also the last."""
    settings.SIGN_IN_NAME_LIMIT = "4/minute"
    spellings = ["amy ", " " * 200 + "amy", "AMY", "\uff41my", "\U0001d41amy"]
    statuses = [sign_in_as(name, "wrong") for name in spellings]
    assert statuses == [400, 400, 400, 400, 429]
    assert [sign_in_as("\u00e1my"), sign_in_as("amy")] == [400, 429]


def sign_in_as(name: str, password: str = PASSWORD) -> int:
    form = {"username": name, "password": password}
    return Client().post("/accounts/sign-in/", form).status_code


def test_sign_in_does_not_reveal_accounts(hashes: list[str]) -> None:
    """Known, unknown, deactivated, without a password: the same page after the same work."""
    User.objects.create_user("known", password=PASSWORD)
    User.objects.create_user("closed", password=PASSWORD, is_active=False)
    User.objects.create_user("guest", password=None)
    seen = set()
    for name in ("known", "closed", "guest", "unknown"):
        hashes.clear()
        response = Client().post("/accounts/sign-in/", {"username": name, "password": "wrong"})
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
    assert [sign_up("li"), sign_up("li", "short"), sign_up("wang"), sign_up("LI")] == [
        400,
        400,
        302,
        400,
    ]
    assert [sign_up("li"), sign_up("zhang")] == [429, 429]
    assert not User.objects.filter(username="zhang").exists()
    assert sign_up("zhang", address="203.0.113.2") == 302


def test_order_numbers_are_random() -> None:
    numbers = [Order().number for _ in range(50)]
    assert all(re.fullmatch("[0-9A-F]{16}", number) for number in numbers)
    assert len({number[:4] for number in numbers}) > 25


def test_staff_pages_require_permissions() -> None:
    """Staff without permissions see only the start page."""
    client = signed_in(User.objects.create_user("temp", password=None, is_staff=True))
    assert client.get("/admin/").status_code == 200
    for path in ("/admin/locking/lockpolicy/", "/admin/shop/order/", "/admin/shop/user/"):
        assert client.get(path).status_code == 403, path
    switch = {"backend": "none", "mode": "naive", "reason": "x", "step": "force", "confirm": "none"}
    assert client.post("/admin/locking/lockpolicy/1/change/", switch).status_code == 403
    customer = signed_in()
    for path in ("/admin/", "/admin/locking/lockpolicy/1/change/", "/admin/shop/order/"):
        assert customer.get(path).status_code == 302
