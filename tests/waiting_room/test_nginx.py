"""deploy/nginx.conf in front of a small server: one poll a second reaches it."""

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from devservers import HOST, Nginx
from devservers.faults.waiting import until

STATUS = "sales/backpack/room/status.json"
REQUESTS = 600


class Upstream(BaseHTTPRequestHandler):
    """Counts its requests and returns them in a response that may be kept for a second."""

    requests: Counter[str] = Counter()
    status = 200

    def do_GET(self) -> None:
        self.requests[self.path.partition("?")[0]] += 1
        body = json.dumps({"served": self.requests.total(), "filler": "x" * 2000}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        if self.status == 200 and "json" in self.path:
            self.send_header("Cache-Control", "public, max-age=1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the URL of nginx with the project's configuration in front of `Upstream`."""
    monkeypatch.setattr(Upstream, "requests", Counter())
    monkeypatch.setattr(Upstream, "status", 200)
    web = ThreadingHTTPServer((HOST, 0), Upstream)
    threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
    nginx = Nginx(web=f"{HOST}:{web.server_port}")
    try:
        nginx.start()
        yield nginx.url
    finally:
        nginx.stop()
        web.shutdown()
        web.server_close()


def get(url: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, headers=headers)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            return response.status, response.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except OSError:
        return 0, b""


def test_polls_of_all_are_one_request_a_second(proxy: str) -> None:
    """With other queries and cookies, too; the control is a page, each of which reaches Python."""
    started = time.monotonic()

    def poll(number: int) -> int:
        return get(f"{proxy}{STATUS}?{number}", Cookie=f"sessionid={number}")[0]

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(poll, range(REQUESTS))) == {200}
        seconds = time.monotonic() - started
        assert set(pool.map(lambda _: get(f"{proxy}sales/backpack/")[0], range(20))) == {200}
    assert 1 <= Upstream.requests[f"/{STATUS}"] <= seconds + 2
    assert Upstream.requests["/sales/backpack/"] == 20


def test_polls_learn_of_a_change(proxy: str) -> None:
    before = get(proxy + STATUS)[1]
    until(lambda: get(proxy + STATUS)[1] != before, "a new number", 10)


def test_status_is_at_most_a_second_old(proxy: str) -> None:
    """nginx alone serves a reply with max-age=1 for two seconds: half as many requests."""
    seconds: set[int] = set()

    def poll() -> bool:
        get(proxy + STATUS)
        seconds.add(int(time.time()))
        return len(seconds) == 7

    until(poll, "polls in seven seconds")
    assert Upstream.requests[f"/{STATUS}"] >= len(seconds) - 1


def test_failed_room_does_not_look_open(proxy: str) -> None:
    """No old reply is served when Python fails."""
    assert get(proxy + STATUS)[0] == 200
    Upstream.status = 503
    until(lambda: get(proxy + STATUS)[0] == 503, "the failure to show", 10)


def test_record_is_compressed(proxy: str) -> None:
    url = f"{proxy}sales/backpack/room/record.json"
    plain = get(url)[1]
    assert len(get(url, **{"Accept-Encoding": "gzip"})[1]) < len(plain) / 10
