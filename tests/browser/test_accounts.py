"""An account is opened with a proof of work, and a forgotten password is reset by email."""

import re

from playwright.sync_api import expect

from shop.mail import service
from shop.models import User
from shop.platform import proof_of_work
from tests.browser.conftest import PHONE, problems, sign_in, with_and_without_script

MAILBOX = "loadtest.web.mailbox.Mailbox"


def test_forgotten_password_is_reset_through_the_mailbox(people, settings, live_server):
    settings.EMAIL_BACKEND, settings.SITE_URL = MAILBOX, live_server.url
    page = people(**PHONE)
    found = []
    page.goto("/accounts/sign-in/")
    sign_in(page)
    page.locator("summary").filter(has_text="li").click()
    page.get_by_role("button", name="Sign out").click()
    page.goto("/accounts/sign-in/")
    page.get_by_role("link", name="Forgot your password?").click()
    found += problems(page, "reset")
    page.get_by_label("Email").fill("li@example.com")
    page.get_by_role("button", name="Send the link").click()
    expect(page.get_by_role("status")).to_contain_text("we've sent a link")
    page.get_by_role("link", name="Read your email").click()
    expect(page.get_by_text("No messages.")).to_be_visible()
    assert service.send_mail() == 1
    page.get_by_role("button", name="Check again").click()
    found += problems(page, "mailbox")
    page.get_by_role("link", name=re.compile("accounts.reset")).click()
    for label in ("New password:", "New password confirmation:"):
        page.get_by_label(label, exact=True).fill("a-blue-kettle-7")
    found += problems(page, "new-password")
    page.get_by_role("button", name="Set a new password").click()
    expect(page.get_by_text("Your new password is set.")).to_be_visible()
    page.get_by_label("Username").fill("li")
    page.get_by_label("Password").fill("a-blue-kettle-7")
    page.locator("main form button").first.click()
    expect(page.locator("summary").filter(has_text="li")).to_be_visible()
    assert found == []


@with_and_without_script
def test_visitor_signs_up_and_joins_with_a_proof(people, settings, monkeypatch, script):
    settings.PROOF_OF_WORK = 10
    page = people(java_script_enabled=script)
    page.goto("/accounts/sign-up/?next=/sales/backpack/")
    if script:
        assert problems(page, "proof-sign-up") == []
    page.get_by_label("Username").fill("new")
    for label in ("Password", "Password confirmation"):
        page.get_by_label(re.compile(f"^{label}")).first.fill("a-red-kettle-9")
    page.get_by_role("button", name="Sign up", exact=True).click()
    if not script:
        expect(page.get_by_role("alert")).to_contain_text("One more step")
        assert not User.objects.filter(username="new").exists()
        monkeypatch.setattr(proof_of_work, "WAIT", -1)
        for field in page.locator("input[type=password]").all():
            field.fill("a-red-kettle-9")
        page.get_by_role("button", name="Sign up", exact=True).click()
    page.get_by_role("button", name="Join the waiting room").click()
    if not script:
        expect(page.get_by_role("heading", name="One more step")).to_be_visible()
        page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("heading", name="You're in.")).to_be_visible()
