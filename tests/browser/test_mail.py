"""A customer reads the shop's email: a forgotten password, a reminder."""

import re

from playwright.sync_api import expect

from shop.mail import service
from tests.browser.conftest import (
    PHONE,
    problems,
    sign_in,
)

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
