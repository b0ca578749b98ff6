"""FAULTS.md, "Bad input": user names, sessions, hosts, cookies, and rate limits of sign-in."""

import re
from unittest.mock import patch

import pytest
from django.test import Client

from shop.models import User
from tests.shop.web.bad_input import client_of

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]

PASSWORD = "a-red-kettle-9"  # noqa: S105


@pytest.fixture
def wang() -> User:
    return User.objects.create_user("wang", password=PASSWORD)


@pytest.fixture
def amy() -> User:
    return User.objects.create_superuser("amy", password=PASSWORD)


def sign_in(client: Client, name: str = "wang", password: str = PASSWORD, **fields: str):
    form = {"username": name, "password": password, **fields}
    return client.post("/accounts/sign-in/", form, headers={"X-Forwarded-For": fields.get("via")})


@pytest.mark.parametrize(
    "then",
    ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil", "///e", "\0"],
)
def test_next_page_is_never_another_site(wang, then):
    client = client_of()
    assert sign_in(client, next=then)["Location"] == "/"
    response = client.post("/i18n/setlang/", {"language": "zh-hans", "next": then})
    assert response["Location"] == "/"
    form = {"username": "new", "password1": PASSWORD, "password2": PASSWORD, "next": then}
    assert client_of().post("/accounts/sign-up/", form)["Location"] == "/"


@pytest.mark.parametrize(("name", "faulty"), [("new", "password2"), ("", "username")])
def test_first_field_with_an_error_has_the_focus(name, faulty):
    form = {"username": name, "password1": PASSWORD, "password2": "another"}
    page = client_of().post("/accounts/sign-up/", form).text
    assert re.findall(r'name="(\w+)"[^>]* autofocus', page) == [faulty]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 200_000, "<script>", "' or 1=1 --", "none"])
def test_malformed_usernames_are_refused(name):
    assert sign_in(client_of(), name).status_code == 400
    form = {"username": name, "password1": "x", "password2": "y"}
    assert client_of().post("/accounts/sign-up/", form).status_code == 400
    assert not User.objects.exists()


@pytest.mark.parametrize("path", ["/accounts/profile/", "/accounts/password/"])
def test_changes_of_an_account_are_limited(path, li, settings):
    settings.SIGN_IN_FAILURE_LIMIT = "2/minute"
    client = client_of(li)
    statuses = [client.post(path, {"email": "x"}).status_code for _ in range(3)]
    assert statuses == [400, 400, 429]


def test_wrong_passwords_of_staff_are_limited_wherever_they_change_it(amy, settings):
    """The admin's own page let an open session try any number of passwords."""
    settings.SIGN_IN_FAILURE_LIMIT = "2/minute"
    client = client_of(amy)
    page = client.get("/admin/password_change/", follow=True)
    path = page.redirect_chain[-1][0] if page.redirect_chain else "/admin/password_change/"
    form = {**FORMS["password"], "old_password": "wrong"}
    assert [client.post(path, form).status_code for _ in range(3)] == [400, 400, 429]
    client.post("/admin/password_change/", FORMS["password"])
    assert User.objects.get().check_password(PASSWORD)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"email": "other@example.com"}, 400),
        ({"email": "other@example.com", "old_password": "wrong"}, 400),
        ({"email": "", "old_password": "wrong"}, 400),
        ({"email": "wang@example.com", "first_name": "Wang"}, 302),
        ({"email": "other@example.com", "old_password": PASSWORD}, 302),
    ],
)
def test_new_email_address_needs_the_password(wang, sent, status):
    """Otherwise an open session could take over the account by a link to a new password."""
    User.objects.update(email="wang@example.com")
    response = client_of(wang).post("/accounts/profile/", sent)
    assert response.status_code == status
    kept = User.objects.get().email
    assert kept == (sent["email"] if status == 302 else "wang@example.com")
    assert ("old password was entered incorrectly" in response.text) == (status == 400)


NEW = "a-blue-kettle-7"
FORMS = {
    "profile": {"first_name": "Wang"},
    "password": {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW},
}


@pytest.mark.parametrize("page", FORMS)
def test_saved_form_keeps_what_others_changed_meanwhile(page, wang):
    def close_account(*_limit: str) -> None:
        User.objects.update(is_active=False)

    client = client_of(wang)
    with patch("shop.web.accounts.rate_limits.count", close_account):  # the account has been read
        assert client.post(f"/accounts/{page}/", FORMS[page]).status_code == 302
    kept = User.objects.get()
    assert not kept.is_active
    assert kept.first_name == "Wang" or kept.check_password(NEW)


@pytest.mark.parametrize(
    ("path", "query"),
    [
        *((f"/accounts/{name}/", "") for name in ("sign-in", "sign-up", "reset", "reset/sent")),
        ("/accounts/sign-up/?next=/orders/", "?next=/orders/"),
        ("/products/", "?next=/products/"),
    ],
)
def test_signing_in_leads_back_to_no_page_for_visitors(path, query):
    links = re.findall(r'href="(/accounts/sign-in/[^"]*)"', client_of().get(path).text)
    assert set(links) == {f"/accounts/sign-in/{query}"}


def test_known_device_signs_in_while_its_name_is_locked(amy, settings):
    """Before, 100 wrong passwords from anywhere locked an account out of the sale."""
    settings.SIGN_IN_NAME_LIMIT, path = "3/minute", "/accounts/sign-in/"
    device, other = client_of(), client_of()
    strangers = [client_of(REMOTE_ADDR=f"203.0.113.{number}") for number in range(4)]
    form = {"username": "\uff41my", "password": PASSWORD}
    assert device.post(path, form).status_code == 302
    User.objects.create_user("wang", password=PASSWORD)
    assert sign_in(other).status_code == 302, "a device of another account"
    device.post("/accounts/sign-out/")
    other.post("/accounts/sign-out/")
    wrong = {**form, "password": "wrong"}
    assert [one.post(path, wrong).status_code for one in strangers] == [400, 400, 400, 429]
    assert [one.post(path, form).status_code for one in (*strangers, other)] == [429] * 5
    assert sign_in(client_of(), "zhang", "wrong").status_code == 400, "another name"
    assert device.post(path, {**form, "username": "amy"}).status_code == 302


def test_known_device_has_a_limit_of_its_own(wang, settings):
    settings.SIGN_IN_NAME_LIMIT = "3/minute"
    device = client_of()
    sign_in(device)
    assert [sign_in(device, "wang", "wrong").status_code for _ in range(4)] == [400] * 3 + [429]
    assert sign_in(client_of()).status_code == 302, "it locks out no other device"
    settings.SIGN_IN_NAME_LIMIT, settings.SIGN_IN_FAILURE_LIMIT = "100/minute", "1/minute"
    statuses = [sign_in(device, "wang", "wrong").status_code for _ in range(2)]
    assert statuses == [400, 429], "the limit of its address applies"


def test_forged_device_is_unknown(wang, settings):
    settings.SIGN_IN_NAME_LIMIT = "1/minute"
    device = client_of()
    sign_in(device)
    cookie = device.cookies["device"]
    assert cookie["httponly"]
    assert cookie["samesite"]
    device.cookies["device"] = cookie.value.replace(":", "0:", 1)
    assert [sign_in(device, "wang", "wrong").status_code for _ in range(2)] == [400, 429]
    assert sign_in(client_of()).status_code == 429


def test_sign_ins_are_limited_per_address(wang, settings):
    settings.SIGN_IN_LIMIT = "2/minute"
    statuses = [sign_in(client_of(), via=f"203.0.113.{n}").status_code for n in range(3)]
    assert statuses == [302, 302, 429]
    assert client_of().post("/accounts/sign-up/", {}).status_code == 429


def test_customer_has_a_whole_network_of_ipv6(wang, settings):
    settings.SIGN_IN_LIMIT = "2/minute"
    addresses = [f"2001:db8::{number}" for number in (1, 2, 3)]
    addresses += ["2001:db8:0:1::1", "::ffff:192.0.2.1", "::ffff:192.0.2.2", "::ffff:192.0.2.3"]
    statuses = [sign_in(client_of(REMOTE_ADDR=one)).status_code for one in addresses]
    assert statuses == [302, 302, 429, 302, 302, 302, 302]


def test_client_address_is_read_behind_own_proxy(wang, settings):
    settings.SIGN_IN_LIMIT, settings.PROXY_HOPS = "1/minute", 1
    client = client_of()
    assert sign_in(client, via="198.51.100.1, 203.0.113.1").status_code == 302
    assert sign_in(client, via="198.51.100.2, 203.0.113.1").status_code == 429
    assert sign_in(client, via="203.0.113.1, 203.0.113.2").status_code == 302
