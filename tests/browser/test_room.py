"""The waiting room in Chromium: from joining to the turn, announcements, estimates, states."""

import re
from functools import partial
from typing import Any

from playwright.sync_api import Page, Route, expect

from shop.administration.sale_management import open_now
from shop.models import Sale, User
from shop.platform import proof_of_work
from tests.browser.conftest import every_look, problems, with_and_without_script
from waiting_room import tasks
from waiting_room.service import set_inlet
from waiting_room.views import estimate

ROOM = "/sales/backpack/room/"
STATUS: dict[str, Any] = {
    "state": "open",
    "serving": 0,
    "lapsed": 0,
    "joined": 1000,
    "left": 500,
    "inlet": 100,
    "message": "",
    "message_zh": "",
    "reason": "",
    "changed": 0,
    "poll": 1,
}
HEAR = """new MutationObserver((changes) => {
  for (const {target} of changes) if (target.id === "announcement") hear(target.textContent);
}).observe(document, {childList: true, subtree: true})"""
"""From the beginning: a busy machine may be late for any event of the page."""


def scripted(page: Page, *, position: int | None = 1000, **first: Any) -> dict[str, Any]:
    """Replace what the script polls; return the status, which the test then changes."""
    status = STATUS | first

    def answer(route: Route) -> None:
        if status["state"] == "down":
            route.abort()
        else:
            route.fulfill(json=status)

    page.route("**/room/status.json", answer)
    admitted = False
    place = {"ticket": "0" * 16, "position": position, "admitted": admitted}
    page.route("**/room/positions-*.json", lambda route: route.fulfill(json={}))
    page.route("**/room/place.json", lambda route: route.fulfill(json=place))
    # Polls and pauses of the page take a thousandth of their time.
    page.add_init_script(
        "const wait = setTimeout; setTimeout = (call, ms) => wait(call, ms > 400 ? ms / 40 : ms)"
    )
    return status


def open_room(page: Page) -> None:
    """Join through the sale page."""
    page.goto("/sales/backpack/")
    page.get_by_role("button", name="Join the waiting room").click()
    expect(page).to_have_url(re.compile(f"{ROOM}$"))


def backpack() -> Sale:
    return Sale.objects.select_related("stock", "product").get(slug="backpack")


def test_visitor_waits_and_buys(people):
    """Nothing is replaced here: the lottery is drawn, and the page goes on to the sale."""
    page = people("li")
    tasks.fill("backpack", 24)
    open_room(page)
    expect(page.get_by_role("heading", name="You're in.")).to_be_visible()
    expect(page.get_by_text("Positions are drawn at")).to_be_visible()
    expect(page.get_by_text("simulated customers wait with you")).to_be_visible()
    expect(page.locator("[data-view=before] [data-n=joined]")).to_have_text("25")
    set_inlet(room=backpack().room, per_minute=60_000, staff=User.objects.get(username="amy"))
    assert open_now(sale=backpack())
    expect(page).to_have_url(re.compile("/sales/backpack/$"))
    page.get_by_role("button", name="Buy now").click()
    expect(page.get_by_text("Waiting for payment")).to_be_visible()
    page.goto(ROOM)
    page.get_by_text("Check the draw").click()
    check, answer = page.get_by_role("button", name="Check it"), page.locator("[data-check] p")
    check.click()
    expect(answer).to_have_text(re.compile(r"Your position is correct: \d+ of 25\. Computed in"))
    place = page.request.get(f"{ROOM}place.json").json()
    page.route("**/room/place.json", partial(Route.fulfill, json=place | {"position": 26}))
    check.click()  # as after the turn is over, and joining again
    expect(answer).to_contain_text("The draw is correct. You joined after it")
    record = page.request.get(f"{ROOM}record.json").json()
    for changed, words in (({"seed": "0"}, "secret number"), ({"list": []}, "list of tickets")):
        page.route("**/room/record.json", partial(Route.fulfill, json=record | changed))
        check.click()
        expect(answer).to_contain_text(f"Not correct: the {words}")


def waiting_and_hearing(people):
    """Return the page of a customer who waits, its scripted status, and what it announces."""
    page, heard = people("li"), []
    page.expose_function("hear", lambda text: heard.append(text))
    page.add_init_script(HEAR)
    status = scripted(page)
    open_room(page)
    return page, status, heard


def test_announcements_are_few(people):
    """Ten minutes of a queue, faster: joining, nine tenths, the last minute and the turn."""
    page, status, heard = waiting_and_hearing(people)
    ahead = page.locator("[data-view=waiting] b[data-n=ahead]")
    for serving in range(0, 1000, 25):
        status["serving"] = serving
        expect(ahead).to_have_text(f"{999 - serving}")
    page.reload()  # announces nothing again
    status["serving"] = 1000
    expect(page).to_have_url(re.compile("/sales/backpack/$"))
    assert heard[0] == "You're in. Your place is kept."
    assert heard[1].startswith("People ahead of you: 899. Your turn in 7 to 11 minutes.")
    assert heard[-2:] == ["Your turn comes within a minute.", "It's your turn"]
    assert len(heard) == 11  # the last tenth is the last minute
    assert page.locator("[aria-live], [role=alert], [role=timer]").count() <= 1


def test_no_estimate_is_announced_while_sold_out(people):
    """The page hides the estimate then: how soon units return is unknown."""
    page, status, heard = waiting_and_hearing(people)
    expect(page.locator("section[data-view=waiting]")).to_be_visible()
    status.update(state="sold_out", serving=500)
    expect(page.locator("[data-view=waiting] b[data-n=ahead]")).to_have_text("499")
    assert [text for text in heard if "Your turn in" in text] == []


def test_reset_that_the_tab_missed_takes_the_place_from_the_page(people):
    """A hidden tab does not poll, so it may never see the room unavailable."""
    page = people("li")
    status = scripted(page)
    open_room(page)
    expect(page.locator("section[data-view=waiting]")).to_be_visible()
    page.route("**/room/place.json", lambda route: route.fulfill(status=404, json={}))
    status.update(generation="another", serving=1000)
    join = page.get_by_role("button", name="Join the waiting room")
    expect(join).to_be_visible()
    assert ROOM in page.url, "not sent to the sale"


def test_tab_goes_to_the_sale_if_staff_remove_its_room(people):
    page, _status, _heard = waiting_and_hearing(people)
    page.route("**/room/status.json", lambda route: route.fulfill(status=404, json={}))
    expect(page).to_have_url(re.compile("/sales/backpack/$"))


def test_tab_does_not_mix_the_estimates_of_two_accounts(people):
    """A lower one is kept: the second customer was promised the first one's minute."""
    page, status, _heard = waiting_and_hearing(people)
    estimate = page.locator("[data-estimate]")
    status["serving"] = 950
    expect(estimate).to_have_text("less than a minute")
    other = people("wang")
    page.context.add_cookies(other.context.cookies())
    status["serving"] = 0
    open_room(page)
    expect(estimate).to_have_text("8 to 12 minutes")


def test_turn_that_is_over_leads_to_the_end_of_the_line(people):
    """The turn passed while the tab was hidden; the tab then forgets it, and so the estimate."""
    page, status, heard = waiting_and_hearing(people)
    expect(page.locator("[data-estimate]")).to_have_text("8 to 12 minutes")
    status.update(serving=2000, lapsed=1000, joined=2000)
    again = page.get_by_role("button", name="Join again")
    expect(again).to_be_visible()
    assert ROOM in page.url, "not sent to the sale"
    assert heard[-1] == "Your turn is over"
    assert not [name for name in page.evaluate("Object.keys(sessionStorage)") if ROOM in name]
    again.click()
    expect(page).to_have_url(re.compile(f"{ROOM}$"))


def test_estimate_is_that_of_python(people):
    """The script repeats the formula that `lab fairness` tests."""
    page = people("li")
    status = scripted(page, inlet=77)
    open_room(page)
    for serving in (0, 123, 400, 555, 700, 850, 922, 923, 999):
        status["serving"] = serving
        least, most = estimate(position=1000, serving=serving, inlet_per_minute=77)
        under = f"less than {most} minutes" if most > 1 else "less than a minute"
        expect(page.locator("[data-view=waiting] b[data-n=ahead]")).to_have_text(f"{999 - serving}")
        words = f"{least} to {most} minutes" if least else under
        expect(page.locator("[data-estimate]")).to_have_text(words)


def test_estimate_rises_only_with_a_reason(people):
    page = people("li")
    status = scripted(page)
    open_room(page)
    shown = page.locator("[data-estimate]")
    expect(shown).to_have_text("8 to 12 minutes")
    status["inlet"] = 50
    status["joined"] = 1001
    expect(page.locator("[data-view=waiting] td[data-n=waiting]")).to_have_text("1,001")
    expect(shown).to_have_text("8 to 12 minutes")
    status |= {"reason": "slowed", "changed": 1}
    expect(shown).to_have_text("16 to 24 minutes")
    expect(page.get_by_text("Fewer people are let in per minute than before.")).to_be_visible()


@every_look
def test_each_state_fits_and_is_accessible(people, look):
    page, found = people("li", **look), []
    status = scripted(page, message="Units return at noon.", message_zh="中午补货。")

    def check(name: str) -> None:
        found.extend(problems(page, f"room-{name}"))

    page.goto(ROOM)
    page.locator("details.draw summary").click()
    check("join")
    page.locator("[data-view=join] button").click()
    for state in ("before", "open", "paused", "offered", "sold_out", "down", "over", "ended"):
        status |= {"state": state, "lapsed": 1000 * (state == "over")}
        view = {"down": "unavailable"}.get(state, "waiting")
        view = state if state in ("before", "over", "ended") else view
        expect(page.locator(f"section[data-view={view}]")).to_be_visible()
        expect(
            page.locator(f"[data-when={state}]:visible, section[data-view={view}]").first
        ).to_be_visible()
        check(state)
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
