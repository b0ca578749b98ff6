"""Take the pictures of the README: start a demo, buy in it, and write docs/img/*.png.

    .venv/bin/python tools/screenshots.py

Needs Chromium (Debian's package) and the packages of the tests.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "img"
PASSWORD = "red-kettle"  # noqa: S105 - the demo's
START_SECONDS = 120.0
LOAD_TEST_MS = 180_000
DESKTOP: dict[str, Any] = {
    "viewport": {"width": 1280, "height": 800},
    "timezone_id": "Asia/Shanghai",
}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 780}, "timezone_id": "Asia/Shanghai"}


@contextmanager
def demo() -> Iterator[str]:
    """Run a demo with private stores and yield its URL."""
    with socket.socket() as free, tempfile.TemporaryDirectory(prefix="screenshots-") as var:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        process = subprocess.Popen(
            [sys.executable, ROOT / "tools" / "demo.py"],
            env={**os.environ, "SHOP_VAR": var, "PORT": str(port)},
            stdout=subprocess.DEVNULL,
        )
        address = f"http://127.0.0.1:{port}"
        try:
            wait_for(f"{address}/readyz", process)
            yield address
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit("The demo ended; run `make demo` to see the reason.")
        try:
            urllib.request.urlopen(url, timeout=5)  # noqa: S310 - our own
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    sys.exit("The demo does not respond.")


def window(browser: Browser, address: str, name: str, **options: Any) -> Page:
    page = browser.new_context(base_url=address, **options).new_page()
    page.goto("/accounts/sign-in/")
    page.locator("[name=username]").fill(name)
    page.locator("[name=password]").fill(PASSWORD)
    page.locator("main form button").click()
    page.wait_for_url("**/")
    return page


def save(page: Page, name: str) -> None:
    page.evaluate("document.fonts.ready")
    page.screenshot(path=PICTURES / f"{name}.png")
    print(f"docs/img/{name}.png")


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with demo() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium") or "/usr/bin/chromium", args=["--no-sandbox"]
        )
        staff = window(browser, address, "amy", color_scheme="light", **DESKTOP)
        staff.goto("/lab/")
        staff.get_by_role("button", name="Oversell now").click()
        page = window(browser, address, "li", color_scheme="light", **DESKTOP)
        save(page, "home")
        phone = window(browser, address, "wang", color_scheme="dark", **PHONE)
        phone.goto("/sales/teapot/")
        save(phone, "sale")
        phone = window(browser, address, "zhang", color_scheme="light", locale="zh-CN", **PHONE)
        phone.goto("/sales/phone-x/")
        phone.locator(".action form button").click()
        phone.locator("main form[action$='/payment/'] button").wait_for()
        save(phone, "order")
        staff.locator("#run figure, #run table").first.wait_for(timeout=LOAD_TEST_MS)
        save(staff, "lab")
        browser.close()


if __name__ == "__main__":
    main()
