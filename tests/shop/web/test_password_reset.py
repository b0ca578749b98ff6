"""A forgotten password: the same answer for every address, a link that works once, for an hour."""

from unittest.mock import patch

import pytest
from django.core import mail
from django.test import Client

from shop.mail.models import Message
from shop.mail.service import send_mail
from shop.models import TokenRevocation, User
from tests.shop.making import signed_in

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("in_force")]

OLD, NEW = "a-red-kettle-9", "a-blue-kettle-7"


@pytest.fixture
def wang() -> User:
    return User.objects.create_user("wang", "wang@example.com", OLD)


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


def test_every_address_gets_the_same_answer(wang) -> None:
    """Only an account that can sign in with a password gets a message."""
    User.objects.create_user("closed", "closed@example.com", OLD, is_active=False)
    User.objects.create_user("guest", "guest@example.com")
    names = ("wang", "Wang", "closed", "guest", "nobody")
    pages = {ask(f"{name}@example.com").text for name in names}
    assert len(pages) == 1
    assert "If an account has this address" in pages.pop()
    assert [message.customer for message in Message.objects.all()] == [wang], "once in a while"


def test_one_request_leads_to_few_messages() -> None:
    """Anyone can open a thousand accounts with the address of another person."""
    accounts = [User(username=f"n{n}", email="li@example.com", password=OLD) for n in range(15)]
    User.objects.bulk_create(accounts)
    ask("li@example.com")
    told = Message.objects.order_by("pk").values_list("customer__username", flat=True)
    assert list(told) == [one.username for one in accounts[:10]], "the oldest, which may be theirs"


@pytest.mark.parametrize("spelled", ["Wang@Example.com", "wang@example.com", "WANG@EXAMPLE.COM"])
def test_address_is_found_in_any_spelling(spelled: str) -> None:
    form = {"username": "wang", "password1": OLD, "password2": OLD, "email": "Wang@Example.com"}
    assert Client().post("/accounts/sign-up/", form).status_code == 302
    ask(spelled)
    assert Message.objects.count() == 1


@pytest.mark.parametrize("address", ["", "x", "a\0@b.c", "a@b.c\nTo: d@e.f", "x" * 300 + "@b.c"])
def test_malformed_address_is_refused(address: str) -> None:
    assert ask(address).status_code == 400


def test_requests_are_limited_per_address(wang, settings) -> None:
    settings.SIGN_IN_FAILURE_LIMIT, settings.SIGN_IN_LIMIT = "2/minute", "1/minute"
    assert [ask("a@example.com").status_code for _ in range(3)] == [200, 200, 429]
    path = link_of(wang)
    assert [set_password(Client(), path, "x").status_code for _ in range(2)] == [400, 429]


def link_of(user: User) -> str:
    Message.objects.create(kind="reset", about=0, customer=user)
    return link()


def test_link_sets_a_password_once_and_ends_the_sessions(wang) -> None:
    other = signed_in(wang)
    ask()
    path = link()
    client = Client()
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


def test_new_password_does_not_reopen_an_account_that_was_closed_meanwhile(wang) -> None:
    def close_account(*_limit: str) -> None:
        User.objects.update(is_active=False)

    path = link_of(wang)
    with patch("shop.web.accounts.rate_limits.count", close_account):  # the account has been read
        assert set_password(Client(), path).status_code == 302
    wang.refresh_from_db()
    assert wang.check_password(NEW)
    assert not wang.is_active


def test_link_expires(wang, settings) -> None:
    ask()
    path = link()
    assert "New password" in Client().get(path, follow=True).text
    assert settings.PASSWORD_RESET_TIMEOUT == 3600
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert "has expired" in Client().get(path, follow=True).text


def test_shop_without_a_mail_server_offers_no_reset(wang, settings) -> None:
    assert "Forgot your password?" in Client().get("/accounts/sign-in/").text
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"
    assert "Forgot your password?" not in Client().get("/accounts/sign-in/").text
    assert ask().status_code == 404


def test_language_of_mail_follows_the_customer(wang) -> None:
    client = Client(headers={"Accept-Language": "zh-CN"})
    form = {"username": "wang", "password": OLD}
    assert client.post("/accounts/sign-in/", form).status_code == 302
    assert User.objects.get(pk=wang.pk).language == "zh-hans"
    for sent, kept in (("en", "en"), ("xx", "en"), ("zh-hans", "zh-hans")):
        client.post("/i18n/setlang/", {"language": sent, "next": "/"})
        assert User.objects.get(pk=wang.pk).language == kept
