"""Take the pictures of the docs: start a demo, oversell in it, and write docs/img/*.png.

    .venv/bin/python -m tools.screenshots

`room-100000.png` is the waiting room after the opening, with 100,000 accounts that joined through
the service.
`oversell.png` is an animation (APNG) of the one-click run, made of screenshots of that run. Needs
Chromium (Debian's package) and the packages of the tests.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from devservers import reserve_port
from devservers.faults.waiting import until

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "img"
PASSWORD = "red-kettle"  # noqa: S105 - the demo's
START_SECONDS = 300.0
LOAD_TEST_MS = 420_000
DESKTOP: dict[str, Any] = {
    "viewport": {"width": 1280, "height": 800},
    "timezone_id": "Asia/Shanghai",
}
ANIMATION: dict[str, Any] = {"viewport": {"width": 1000, "height": 560}, "color_scheme": "light"}
FIRST_MS, FRAME_MS, LAST_MS = 2500, 800, 4500
RUNNING_FRAMES = 5
"""Frames of the animation that show the run in progress."""
PEOPLE, INLET = 100_000, 8000
"""People in the picture of the waiting room, and how many of them are admitted per minute."""
WAITED_MS = 60_000


JOIN = f"""
from datetime import timedelta
from shop.administration.sale_management import open_now, restock_sale
from shop.models import Sale, User
from waiting_room import service
sale = Sale.objects.select_related("stock", "product").get(slug="backpack")
sale.opens_at += timedelta(hours=1)  # joining takes minutes
sale.save()
people = [User(username=f"visitor-{{n}}") for n in range({PEOPLE})]
User.objects.bulk_create(people, batch_size=5000)
ids = User.objects.filter(username__startswith="visitor-").values_list("pk", flat=True)
for pk in ids:
    service.join(sale=sale, customer_id=pk)
amy = User.objects.get(username="amy")
service.set_inlet(room=sale.room, per_minute={INLET}, staff=amy)
restock_sale(sale=sale, quantity={PEOPLE} // 2)
assert open_now(sale=sale)
"""


@contextmanager
def demo() -> Iterator[tuple[str, dict[str, str]]]:
    """Run a demo with private stores; yield its URL and the environment of its processes."""
    port, mark = reserve_port()
    with mark, tempfile.TemporaryDirectory(prefix="screenshots-") as var:
        environment = {**os.environ, "SHOP_VAR": var, "PORT": str(port)}
        process = subprocess.Popen([sys.executable, ROOT / "tools" / "demo.py"], env=environment)
        address = Path(var, "demo.url")
        try:
            until(lambda: address.exists() or process.poll(), "the demo", START_SECONDS)
            yield address.read_text().strip(), environment
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def new_page(browser: Browser, address: str, **options: Any) -> Page:
    page = browser.new_context(base_url=address, **options).new_page()
    page.set_default_timeout(LOAD_TEST_MS)
    return page


def window(browser: Browser, address: str, name: str, **options: Any) -> Page:
    page = new_page(browser, address, **options)
    page.goto("/accounts/sign-in/")
    page.locator("#id_username").fill(name)
    page.locator("#id_password").fill(PASSWORD)
    page.locator("#id_password").press("Enter")
    page.wait_for_url("**/")
    return page


def animated(frames: list[tuple[bytes, int]]) -> bytes:
    """Return an endless APNG of (PNG, milliseconds) frames of one size."""
    first, *others = (Image.open(BytesIO(png)) for png, _milliseconds in frames)
    durations = [milliseconds for _png, milliseconds in frames]
    file = BytesIO()
    first.save(file, "PNG", save_all=True, append_images=others, duration=durations, loop=0)
    return file.getvalue()


def film_oversell(browser: Browser, address: str) -> None:
    """Click the one-click run as a visitor, and write an animation of it and its last frame."""
    page = new_page(browser, address, **ANIMATION)
    page.goto("/")
    first, running = page.screenshot(), []
    page.locator("form[action='/lab/start/'] button").click()
    charts = page.locator(".charts").first
    deadline = time.monotonic() + LOAD_TEST_MS / 1000
    while not page.locator("#share").is_visible():
        if time.monotonic() > deadline:
            sys.exit("The one-click run did not end.")
        running.append((page.screenshot(), FRAME_MS))
        page.wait_for_timeout(FRAME_MS / 2)
    page.evaluate("document.fonts.ready")
    still = page.screenshot()
    charts.evaluate("element => element.scrollIntoView()")
    last = page.screenshot()
    step = max(1, len(running) // RUNNING_FRAMES)
    running = running[::step][:RUNNING_FRAMES]
    frames = [(first, FIRST_MS), *running, (still, LAST_MS), (last, LAST_MS)]
    write("oversell.png", animated(frames))
    write("oversell-still.png", still)


def take_room(browser: Browser, address: str, environment: dict[str, str]) -> None:
    """Join the waiting room, fill it, and take it a minute after the opening."""
    page = window(browser, address, "li", color_scheme="light", **DESKTOP)
    page.goto("/sales/backpack/")
    page.locator(".action form button").click()
    page.locator("section[data-view=before]").wait_for()
    subprocess.run(
        [sys.executable, ROOT / "manage.py", "shell", "-c", JOIN], env=environment, check=True
    )
    page.locator("section[data-view=waiting]").wait_for()
    page.wait_for_timeout(WAITED_MS)
    page.evaluate("document.fonts.ready")
    write(f"room-{PEOPLE}.png", page.screenshot())


def write(name: str, picture: bytes) -> None:
    (PICTURES / name).write_bytes(picture)
    print(f"docs/img/{name}, {len(picture) / 1000:.0f} KB")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with demo() as (address, environment), sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or "/usr/bin/chromium", args=["--no-sandbox"]
        )
        take_room(browser, address, environment)  # first: its sale opens soon
        film_oversell(browser, address)
        browser.close()


if __name__ == "__main__":
    main()
