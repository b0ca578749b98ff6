"""Buyers for Locust: sign up, browse, wait for the opening, buy, then pay or not.

    locust -f loadtest/load/http/locustfile.py --headless --host http://127.0.0.1:8000 \
        --sale camera --users 100 --run-time 60s --opening-in 10

Most of --users arrive before the opening, sign up, browse and wait; in the opening second all of
them buy, and the others arrive. Each form is posted with the fields of its page. The shop limits
sign-ups per address: raise SIGN_IN_LIMIT for more than 300 per minute. For more than about 1,500
requests per second use `lab http`.
"""

import functools
import random
import re
import time
import uuid
from argparse import ArgumentParser
from html import unescape
from typing import Any

import gevent  # type: ignore[import-untyped]
from locust import FastHttpUser, LoadTestShape, between, events, task
from locust.exception import StopUser

MAX_ATTEMPTS = 20
"""How often a buyer sends the same form while the shop is overloaded."""
EARLY = 0.8
"""The share of the buyers that arrive before the opening."""
PAYS = 0.7
"""The share of the winners that pay; the others let their order expire."""
_FORM = re.compile(r'<form method="post" action="([^"]*)".*?</form>', re.DOTALL)
_FIELD = re.compile(r'<input type="hidden" name="(\w+)"[^>]* value="([^"]*)"')
_SALE = re.compile(r'href="(/sales/[\w-]+/)"')
_OPENS = re.compile(r'data-until="([\d.]+)"[^>]* data-then="open"')
_CLOCK = re.compile(r'data-clock="([\d.]+)"')


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--sale", default="", help="its slug; any live one when not given")
    parser.add_argument(
        "--opening-in", type=float, default=10, help="seconds until all buyers buy at once"
    )


def _options(environment: Any) -> Any:
    return environment.parsed_options


class Opening(LoadTestShape):
    """Most users arrive slowly, the others in the opening second; ends when all have left."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users, and how many may be added per second."""
        assert self.runner is not None
        options = _options(self.runner.environment)
        users, seconds = options.num_users or 50, options.run_time or 60
        now = time.monotonic() - self.began
        have_left = now > options.opening_in + 1 and not self.runner.user_count
        if now >= seconds or have_left:
            return None
        if now < options.opening_in:
            early = max(1, round(users * EARLY))
            return early, max(1.0, early / (options.opening_in / 2))
        return users, users

    @functools.cached_property
    def began(self) -> float:
        """Return the monotonic time of the first call."""
        return time.monotonic()


class Buyer(FastHttpUser):
    """A person with a browser."""

    wait_time = between(0.5, 2)
    max_retries = 1  # as a browser does when the server has closed an idle connection

    def on_start(self) -> None:
        """Sign up with a new account, which has bought nothing yet."""
        password = uuid.uuid4().hex
        name = f"locust-{uuid.uuid4().hex[:12]}"
        path = "/accounts/sign-up/"
        fields = {**_fields(self._page(path), ""), "username": name}
        fields |= {"password1": password, "password2": password}
        self._post_until_decided(path, fields, "sign up")

    @task
    def journey(self) -> None:
        """Visit the shop once, then stop."""
        home = self._page("/")
        self._page("/products/")
        slug = _options(self.environment).sale
        paths = [f"/sales/{slug}/"] if slug else sorted(set(_SALE.findall(home)))
        if not paths:
            raise StopUser
        path = random.choice(paths)
        page = self._wait_for_opening(path)
        order = self._buy(path, page)
        if order and random.random() < PAYS:
            self._pay(order)
        raise StopUser

    def _wait_for_opening(self, path: str) -> str:
        page = self._page(path, "/sales/[slug]/")
        if opens := _OPENS.search(page):
            now = _CLOCK.search(page)
            # By the server's clock, not by that of this machine.
            gevent.sleep(max(0.0, float(opens[1]) - (float(now[1]) if now else time.time())))
            page = self._page(path, "/sales/[slug]/")
        shape: Any = self.environment.shape_class
        gevent.sleep(
            max(0.0, shape.began + _options(self.environment).opening_in - time.monotonic())
        )
        return page

    def _buy(self, path: str, page: str) -> str:
        """Return the URL of the order; empty if it is sold out, over the limit or overloaded."""
        fields = {"quantity": "1", **_fields(page, "/buy/")}
        if "idempotency_key" not in fields:
            return ""
        status, data = self._post_until_decided(f"{path}buy/", fields, "buy")
        return str(data.get("url", "")) if status == 201 else ""

    def _pay(self, order: str) -> None:
        fields = _fields(self._page(order, "/orders/[number]/"), "/payment/")
        _, data, _ = self._post(f"{order}payment/", fields, "payment", json=True)
        if gateway := str(data.get("url", "")):
            fields = _fields(self._page(gateway, "/gateway/[reference]/"), "/answer/")
            self._post(f"{gateway}answer/", {**fields, "choice": "approve"}, "approve")

    def _page(self, path: str, name: str = "") -> str:
        with self.client.get(path, name=name or path, catch_response=True) as response:
            return response.text or ""

    def _post_until_decided(
        self, path: str, fields: dict[str, str], name: str
    ) -> tuple[int, dict[str, Any]]:
        """Send a form again while the shop is overloaded; return the last status and its JSON."""
        for _ in range(MAX_ATTEMPTS):
            status, data, retry_after = self._post(path, fields, name, json=True)
            # A sold-out reply asks only those to retry whose earlier request got no reply.
            if not retry_after or data.get("error") == "sold_out":
                break
            gevent.sleep(retry_after * random.uniform(0.5, 1))
        return status, data

    def _post(
        self, path: str, fields: dict[str, str], name: str, *, json: bool = False
    ) -> tuple[int, dict[str, Any], float]:
        """Return the status, the JSON if requested, and the seconds until a retry."""
        headers = {"Accept": "application/json"} if json else {}
        with self.client.post(
            path, data=fields, headers=headers, name=name, catch_response=True
        ) as response:
            status, data = response.status_code, {}
            if json and "json" in (response.headers or {}).get("Content-Type", ""):
                data = response.json()
            # Each kind of reply has its own line; a refusal is not a failure.
            if name == "buy":
                response.request_meta["name"] = f"buy: {data.get('error', 'won')}"
            if (status and status < 500) or data.get("error"):
                response.success()
            wait = float((response.headers or {}).get("Retry-After") or 0)
        return status, data, wait


def _fields(page: str, action: str) -> dict[str, str]:
    """Return the hidden fields of the first form with this action, or those of the page."""
    for form in _FORM.finditer(page):
        if action and unescape(form[1]).endswith(action):
            return {name: unescape(value) for name, value in _FIELD.findall(form[0])}
    start = page.find("<main")
    return {name: unescape(value) for name, value in _FIELD.findall(page[start:])}
