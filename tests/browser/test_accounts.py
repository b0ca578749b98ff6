"""An account is opened with a proof of work, also without script."""

import re

from playwright.sync_api import expect

from shop.models import User
from shop.platform import proof_of_work
from tests.browser.conftest import problems, with_and_without_script


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
