"""The forms of an account: names, next pages, passwords, email addresses, a forgotten password."""

import re
from unittest.mock import patch

import pytest
from django.core import mail
from django.test import Client

from shop.mail.models import Message
from shop.mail.service import send_mail
from shop.models import TokenRevocation, User
from tests.shop.making import PASSWORD, sign_in, signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.stores, pytest.mark.usefixtures("in_force")]


@pytest.fixture
def wang() -> User:
    return User.objects.create_user("wang", "wang@example.com", PASSWORD)


@pytest.fixture
def amy() -> User:
    return User.objects.create_superuser("amy", password=PASSWORD)


def sign_up(name: str, again: str = PASSWORD, **more: str):
    form = {"username": name, "password1": PASSWORD, "password2": again, **more}
    return Client().post("/accounts/sign-up/", form)


@pytest.mark.parametrize(
    "then",
    ["https://evil.example/", "//evil.example", "javascript:alert(1)", "\\\\evil", "///e", "\0"],
)
def test_next_page_is_never_another_site(wang, then):
    client = Client()
    assert sign_in(client, next=then)["Location"] == "/"
    response = client.post("/i18n/setlang/", {"language": "zh-hans", "next": then})
    assert response["Location"] == sign_up("new", next=then)["Location"] == "/"


@pytest.mark.parametrize(("name", "faulty"), [("new", "password2"), ("", "username")])
def test_first_field_with_an_error_has_the_focus(name, faulty):
    page = sign_up(name, again="another").text
    assert re.findall(r'name="(\w+)"[^>]* autofocus', page) == [faulty]


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 200_000, "<script>", "' or 1=1 --", "none"])
def test_malformed_usernames_are_refused(name):
    assert sign_in(Client(), name).status_code == 400
    assert sign_up(name, again="x").status_code == 400
    assert not User.objects.exists()


@pytest.mark.parametrize(
    "page", ["/accounts/profile/", "/accounts/password/", "/admin/password_change/"]
)
def test_changes_of_an_account_are_limited(page, amy, settings):
    """The admin's own page let an open session try any number of passwords."""
    settings.SIGN_IN_FAILURE_LIMIT = "2/minute"
    client = signed_in(amy)
    path = client.get(page, follow=True).request["PATH_INFO"]
    form = {**FORMS["password"], "old_password": "wrong", "email": "x"}
    assert [client.post(path, form).status_code for _ in range(3)] == [400, 400, 429]
    client.post(page, FORMS["password"])
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
    response = signed_in(wang).post("/accounts/profile/", sent)
    assert response.status_code == status
    kept = User.objects.get().email
    assert kept == (sent["email"] if status == 302 else "wang@example.com")
    assert ("old password was entered incorrectly" in response.text) == (status == 400)


NEW = "a-blue-kettle-7"
FORMS = {
    "profile": {"first_name": "Wang", "email": "wang@example.com"},
    "password": {"old_password": PASSWORD, "new_password1": NEW, "new_password2": NEW},
}


@pytest.mark.parametrize("page", FORMS)
def test_saved_form_keeps_what_others_changed_meanwhile(page, wang):
    def close_account(*_limit: str) -> None:
        User.objects.update(is_active=False)

    client = signed_in(wang)
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
    links = re.findall(r'href="(/accounts/sign-in/[^"]*)"', Client().get(path).text)
    assert set(links) == {f"/accounts/sign-in/{query}"}


# --- a forgotten password ----------------------------------------------------------------------


def ask(address: str = "wang@example.com", client: Client | None = None):
    return (client or Client()).post("/accounts/reset/", {"email": address}, follow=True)


def link() -> str:
    send_mail()
    (line,) = [line for line in mail.outbox[-1].body.splitlines() if "http" in line]
    return "/" + line.split("://")[1].partition("/")[2]


def set_password(client: Client, path: str, password: str = NEW):
    """Follow the link and send its form."""
    form = client.get(path, follow=True)
    there = form.redirect_chain[-1][0] if form.redirect_chain else path
    return client.post(there, {"new_password1": password, "new_password2": password})


def test_every_address_gets_the_same_answer(wang):
    """Only an account that can sign in with a password gets a message."""
    User.objects.create_user("closed", "closed@example.com", PASSWORD, is_active=False)
    User.objects.create_user("guest", "guest@example.com")
    names = ("wang", "Wang", "closed", "guest", "nobody")
    pages = {ask(f"{name}@example.com").text for name in names}
    assert len(pages) == 1
    assert "If an account has this address" in pages.pop()
    assert [message.customer for message in Message.objects.all()] == [wang], "once in a while"


def test_one_request_leads_to_few_messages():
    """Anyone can open a thousand accounts with the address of another person."""
    accounts = [
        User(username=f"n{n}", email="li@example.com", password=PASSWORD) for n in range(15)
    ]
    User.objects.bulk_create(accounts)
    ask("li@example.com")
    told = Message.objects.order_by("pk").values_list("customer__username", flat=True)
    assert list(told) == [one.username for one in accounts[:10]], "the oldest, which may be theirs"


@pytest.mark.parametrize("spelled", ["Wang@Example.com", "wang@example.com", "WANG@EXAMPLE.COM"])
def test_address_is_found_in_any_spelling(spelled: str):
    assert sign_up("wang", email="Wang@Example.com").status_code == 302
    ask(spelled)
    assert Message.objects.count() == 1


@pytest.mark.parametrize("address", ["", "x", "a\0@b.c", "a@b.c\nTo: d@e.f", "x" * 300 + "@b.c"])
def test_malformed_address_is_refused(address: str):
    assert ask(address).status_code == 400


def test_requests_are_limited_per_address(wang, settings):
    settings.SIGN_IN_FAILURE_LIMIT, settings.SIGN_IN_LIMIT = "2/minute", "1/minute"
    assert [ask("a@example.com").status_code for _ in range(3)] == [200, 200, 429]
    path = link_of(wang)
    assert [set_password(Client(), path, "x").status_code for _ in range(2)] == [400, 429]


def link_of(user: User) -> str:
    Message.objects.create(kind="reset", about=0, customer=user)
    return link()


def test_link_sets_a_password_once_within_an_hour_and_ends_the_sessions(wang, settings):
    other, client = signed_in(wang), Client()
    ask()
    path = link()
    assert settings.PASSWORD_RESET_TIMEOUT == 3600
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert "has expired" in Client().get(path, follow=True).text
    settings.PASSWORD_RESET_TIMEOUT = 3600
    assert set_password(client, path, "wang").status_code == 400, "too short"
    done = set_password(client, path)
    assert done["Location"] == "/accounts/sign-in/"
    assert "Your new password is set" in client.get(done["Location"]).text
    assert other.get("/accounts/profile/").status_code == 302
    assert TokenRevocation.objects.filter(subject=f"customer:{wang.pk}").exists()
    assert client.login(username="wang", password=NEW)
    for url in (path, path.replace("/reset/", "/reset/x")):
        again = Client().get(url, follow=True)
        assert "has been used, has expired or is incomplete" in again.text
    wang.refresh_from_db()
    assert wang.check_password(NEW)


def test_shop_without_a_mail_server_offers_no_reset(wang, settings):
    assert "Forgot your password?" in Client().get("/accounts/sign-in/").text
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    assert "Forgot your password?" not in Client().get("/accounts/sign-in/").text
    assert ask().status_code == 404


def test_language_of_mail_follows_the_customer(wang):
    client = Client(headers={"Accept-Language": "zh-CN"})
    assert sign_in(client).status_code == 302
    assert User.objects.get(pk=wang.pk).language == "zh-hans"
    for sent, kept in (("en", "en"), ("xx", "en"), ("zh-hans", "zh-hans")):
        client.post("/i18n/setlang/", {"language": sent, "next": "/"})
        assert User.objects.get(pk=wang.pk).language == kept
