"""A customer reads the shop's e-mail: a forgotten password, a reminder."""

import re

from playwright.sync_api import expect

from shop.mail import service
from shop.models import User
from tests.browser.conftest import (
    PHONE,
    bought,
    opens_in,
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


def test_reminder_and_order_lead_to_the_mailbox_in_chinese(people, settings, live_server):
    settings.EMAIL_BACKEND, settings.SITE_URL = MAILBOX, live_server.url
    page = people("li", **PHONE, locale="zh-CN")
    opens_in("headphones", 3600)
    page.goto("/sales/headphones/")
    page.get_by_role("button", name="开抢提醒我").click()
    expect(page.get_by_text("开抢前会发邮件提醒您。")).to_be_visible()
    User.objects.update(language="zh-hans")
    opens_in("headphones", 300)
    assert service.send_mail() == 1
    page.goto(bought("speaker").get_absolute_url())
    page.get_by_role("link", name="查看邮件").click()
    expect(page.get_by_role("heading", name=re.compile("开抢"))).to_be_visible()
    assert problems(page, "mailbox") == []
    page.get_by_role("link", name=re.compile("sales.headphones")).click()
    expect(page).to_have_url(re.compile("sales.headphones"))
