"""Journeys of buyers for Locust: sign up, browse, wait for the opening, buy, pay or walk away.

    locust -f loadtest/load/locustfile.py --headless --host http://127.0.0.1:8000 --sale camera \
        --users 100 --run-time 60s --opening-in 10

Most of --users arrive before the opening, sign up, browse and wait; in the opening second they all
buy, and the rest comes in. Every form is posted as its page holds it. The shop throttles signing up
by address: raise its SIGN_IN_LIMIT for more than 300 a minute. For rates above some 1,500 requests
a second use `lab http`.
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

TRIES = 20
"""How often a buyer who is told "busy" sends the same form."""
EARLY = 0.8
"""The share of the buyers that come before the opening."""
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
    """Early birds trickle in, the rest comes in the opening second; over when all have gone."""

    use_common_options = True

    def tick(self) -> tuple[int, float] | None:
        """How many there are now, and how fast more may come."""
        assert self.runner is not None
        options = _options(self.runner.environment)
        users, seconds = options.num_users or 50, options.run_time or 60
        now = time.monotonic() - self.began
        is_deserted = now > options.opening_in + 1 and not self.runner.user_count
        if now >= seconds or is_deserted:
            return None
        if now < options.opening_in:
            early = max(1, round(users * EARLY))
            return early, max(1.0, early / (options.opening_in / 2))
        return users, users

    @functools.cached_property
    def began(self) -> float:
        """Monotonic; when it was first asked."""
        return time.monotonic()


class Buyer(FastHttpUser):
    """One person with a browser."""

    wait_time = between(0.5, 2)

    def on_start(self) -> None:
        """Sign up; a new account each, so that nobody has a share yet."""
        password = uuid.uuid4().hex
        name = f"locust-{uuid.uuid4().hex[:12]}"
        path = "/accounts/sign-up/"
        fields = {**_fields(self._page(path), ""), "username": name}
        self._post(path, {**fields, "password1": password, "password2": password}, "sign up")

    @task
    def journey(self) -> None:
        """Once; then they are gone."""
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
            # The server's clock counts, not this machine's.
            gevent.sleep(max(0.0, float(opens[1]) - (float(now[1]) if now else time.time())))
            page = self._page(path, "/sales/[slug]/")
        shape: Any = self.environment.shape_class
        gevent.sleep(
            max(0.0, shape.began + _options(self.environment).opening_in - time.monotonic())
        )
        return page

    def _buy(self, path: str, page: str) -> str:
        """The order's page, or nothing: sold out, over the limit or too busy for too long."""
        fields = {"quantity": "1", **_fields(page, "/buy/")}
        if "idempotency_key" not in fields:
            return ""
        for _ in range(TRIES):
            status, told, retry_after = self._post(f"{path}buy/", fields, "buy", json=True)
            if status == 201:
                return str(told.get("url", ""))
            if not retry_after:
                return ""
            gevent.sleep(retry_after * random.uniform(0.5, 1))
        return ""

    def _pay(self, order: str) -> None:
        fields = _fields(self._page(order, "/orders/[number]/"), "/payment/")
        _, told, _ = self._post(f"{order}payment/", fields, "payment", json=True)
        if gateway := str(told.get("url", "")):
            fields = _fields(self._page(gateway, "/gateway/[reference]/"), "/answer/")
            self._post(f"{gateway}answer/", {**fields, "choice": "approve"}, "approve")

    def _page(self, path: str, name: str = "") -> str:
        with self.client.get(path, name=name or path, catch_response=True) as answer:
            return answer.text or ""

    def _post(
        self, path: str, fields: dict[str, str], name: str, *, json: bool = False
    ) -> tuple[int, dict[str, Any], float]:
        """The status, the JSON when asked for, and when to try again."""
        headers = {"Accept": "application/json"} if json else {}
        with self.client.post(
            path, data=fields, headers=headers, name=name, catch_response=True
        ) as answer:
            status, told = answer.status_code, {}
            if json and "json" in (answer.headers or {}).get("Content-Type", ""):
                told = answer.json()
            # Each kind of answer has a line of its own; a refusal is an answer.
            if name == "buy":
                answer.request_meta["name"] = f"buy: {told.get('error', 'won')}"
            if (status and status < 500) or told.get("error"):
                answer.success()
            wait = float((answer.headers or {}).get("Retry-After") or 0)
        return status, told, wait


def _fields(page: str, action: str) -> dict[str, str]:
    """The hidden fields of the first form that is posted there; without one, the page's own."""
    for form in _FORM.finditer(page):
        if action and unescape(form[1]).endswith(action):
            return {name: unescape(value) for name, value in _FIELD.findall(form[0])}
    start = page.find("<main")
    return {name: unescape(value) for name, value in _FIELD.findall(page[start:])}
