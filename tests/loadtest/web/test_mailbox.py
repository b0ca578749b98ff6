"""The lab's mailbox: each message for its recipient alone, also before the sign-in."""

import pytest
from django.core.cache import cache
from django.test import Client

from loadtest.models import LabMail
from shop.mail import service
from shop.mail.models import Message
from shop.mail.service import send_mail
from shop.models import User
from tests.shop.making import put_in_force, signed_in

pytestmark = [pytest.mark.django_db]

PASSWORD = "a-red-kettle-9"  # noqa: S105


@pytest.fixture(autouse=True)
def _mailbox(settings, db, monkeypatch) -> None:
    monkeypatch.setattr(service, "SECONDS", 60.0)
    put_in_force("process")
    cache.clear()
    settings.EMAIL_BACKEND = "loadtest.web.mailbox.Mailbox"


def browser_of(name: str) -> Client:
    """Return a browser in which the account has signed in and out."""
    client = Client()
    form = {"username": name, "password": PASSWORD}
    assert client.post("/accounts/sign-in/", form).status_code == 302
    client.post("/accounts/sign-out/")
    return client


def test_only_the_recipient_reads_a_message() -> None:
    amy = User.objects.create_superuser("amy", "amy@example.com", PASSWORD)
    li = User.objects.create_user("li", "amy@example.com", PASSWORD)
    ben = User.objects.create_superuser("ben", "amy@example.com", PASSWORD)
    for customer in (amy, li):
        Message.objects.create(kind="reset", about=1, customer=customer)
    assert send_mail() == 2
    mails = {one.message.customer: one for one in LabMail.objects.all()}
    for reader, readable in (
        (signed_in(amy), [amy]),
        (signed_in(li), [li]),
        (signed_in(ben), []),
        (browser_of("amy"), [amy]),
        (browser_of("li"), [li]),
        (Client(), []),
    ):
        page = reader.get("/lab/mail/").text
        for customer, one in mails.items():
            link = one.text.split()[-1]
            assert (link in page) == (customer in readable)
            status = reader.get(f"/lab/mail/{one.pk}/").status_code
            assert status == (200 if customer in readable else 404)


def test_before_the_sign_in_only_resets_are_shown() -> None:
    li = User.objects.create_user("li", "li@example.com", PASSWORD)
    for kind in ("reset", "unpaid"):
        message = Message.objects.create(kind=kind, about=1, customer=li)
        LabMail.objects.create(message=message, subject=f"About {kind}", text="<b>", html="x")
    assert "About unpaid" in signed_in(li).get("/lab/mail/").text
    page = browser_of("li").get("/lab/mail/").text
    assert "About reset" in page
    assert "About unpaid" not in page
    assert "&lt;b&gt;" in page


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 10**30])
def test_message_with_a_number_beyond_any_is_not_found(number: int) -> None:
    for reader in (Client(), signed_in()):
        assert reader.get(f"/lab/mail/{number}/").status_code == 404
