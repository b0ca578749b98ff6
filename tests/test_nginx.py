"""deploy/nginx.conf in front of a small server: what reaches it, and what is kept."""

import gzip
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from select import select
from typing import Any

import pytest

from devservers import HOST, Nginx, reserve_port
from devservers.faults.waiting import until
from tests.devservers.stack import Names
from tests.programs import output
from tools.containers.containers import ROOT

STATUS = "sales/backpack/room/status.json"
REQUESTS = 600


class Upstream(BaseHTTPRequestHandler):
    """Counts its requests and returns them in a response that may be kept, as the shop's may."""

    requests: Counter[str] = Counter()
    status = 200

    def do_GET(self) -> None:
        self.requests[self.path.partition("?")[0]] += 1
        got = {name.lower(): value for name, value in self.headers.items()}
        mine = {"served": self.requests.total(), "at": time.time(), "filler": "x" * 2000}
        body = json.dumps({**mine, **got}).encode()
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        if self.status == 200 and "json" in self.path:
            self.send_header("Cache-Control", "public, max-age=1")
        elif "cookie" not in got and not re.search("q=|/static/|/media/", self.path):
            self.send_header("X-Accel-Expires", "1")
            self.send_header("Cache-Control", "private, no-store")
            self.send_header("Vary", "Cookie, Accept-Language")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Web(ThreadingHTTPServer):
    # The default of five: a crowd overflows the queue; its connections are tried again after a
    # second, and two of those are longer than nginx waits.
    request_queue_size = 256


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of `Upstream`."""
    monkeypatch.setattr(Upstream, "requests", Counter())
    monkeypatch.setattr(Upstream, "status", 200)
    with Web((HOST, 0), Upstream) as web:
        threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
        yield f"{HOST}:{web.server_port}"
        web.shutdown()


@pytest.fixture
def proxy(upstream: str) -> Iterator[str]:
    """Yield the URL of nginx with the project's configuration in front of `Upstream`."""
    with Nginx(web=upstream) as nginx:
        yield nginx.url


def get(url: str, data: bytes | None = None, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(url, data, headers)  # noqa: S310
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
        assert set(pool.map(lambda _: get(f"{proxy}orders/")[0], range(20))) == {200}
    assert 1 <= Upstream.requests[f"/{STATUS}"] <= seconds + 2
    assert Upstream.requests["/orders/"] == 20


def test_status_is_at_most_a_second_old(proxy: str) -> None:
    """nginx alone serves a reply with max-age=1 for up to two seconds."""
    replies = set[int]()

    def is_third() -> bool:
        asked, reply = time.time(), seen(proxy + STATUS)
        assert asked - reply["at"] < 1.2, "nginx's clock is some milliseconds late"
        replies.add(reply["served"])
        return len(replies) == 3

    until(is_third, "three replies")


def test_record_is_compressed(proxy: str) -> None:
    url = f"{proxy}sales/backpack/room/record.json"
    plain = get(url)[1]
    assert len(get(url, **{"Accept-Encoding": "gzip"})[1]) < len(plain) / 5


PAGES = ["", "products/", "products/?page=2", "products/cup/", "sales/cup/", "learn/", "learn/x/"]
POLLS = ["live/?layout=1a", "sales/cup/stock/?phase=open&price=9.90&opens=1"]
OWN = {"Cookie": "csrftoken=c; __Host-sessionid=s", "Accept-Language": "de, en"}


def seen(url: str, **headers: str) -> dict[str, Any]:
    """Return what Python has received of the request whose response comes."""
    body = get(url, **headers)[1]
    received: dict[str, Any] = json.loads(gzip.decompress(body) if body[:1] == b"\x1f" else body)
    return received


def test_shared_page_reaches_python_seldom_and_without_cookies(proxy: str) -> None:
    """Twice a second, and more often while Python takes longer than a page may wait for it."""
    cookie = "csrftoken=c; device=d; django_language=zh-hans"
    with ThreadPoolExecutor(8) as pool:

        def is_shared(url: str) -> bool:
            all_seen = list(pool.map(partial(seen, Cookie=cookie), [url] * 50))
            assert not any("cookie" in one for one in all_seen)
            assert {one["accept-language"] for one in all_seen} == {"zh-hans"}
            return len({one["served"] for one in all_seen}) < 15

        for path in PAGES + POLLS:
            until(partial(is_shared, proxy + path), path)


def test_customer_gets_pages_of_their_own(proxy: str) -> None:
    for url in (proxy + path for path in PAGES):
        both = [seen(url, **OWN) for _ in range(2)]
        assert both[0]["served"] < both[1]["served"], url
        for one in both:
            assert (one["cookie"], one["accept-language"]) == tuple(OWN.values())
        assert "cookie" not in seen(url), "no visitor gets it"


def test_all_share_polls(proxy: str) -> None:
    def is_shared(url: str) -> bool:  # unless half a second ends in between
        return bool(seen(url, **OWN)["served"] == seen(url)["served"])

    for url in (proxy + path for path in POLLS):
        until(partial(is_shared, url), "the same response")
        assert "cookie" not in seen(url, **OWN)


LANGUAGES = {
    "zh-TW,zh;q=0.9,en;q=0.8": "zh-hans",
    "ZH": "zh-hans",
    "en-US,en;q=0.9,zh;q=0.8": "en",
    "x" * 999: "en",
}


def test_language_is_one_of_two(proxy: str) -> None:
    for accepted, language in LANGUAGES.items():
        for cookie in ("", "django_language=../x"):
            page = seen(f"{proxy}sales/cup/", Cookie=cookie, **{"Accept-Language": accepted})
            assert page["accept-language"] == language


def test_error_and_what_the_shop_does_not_mark_are_not_kept(proxy: str) -> None:
    for path in ("products/?q=x", "orders/", "accounts/sign-in/"):
        assert seen(proxy + path)["served"] < seen(proxy + path)["served"], path
    for url in (f"{proxy}sales/cup/", proxy + STATUS):  # nor does a failed room look open
        for Upstream.status in (500, 200, 503, 200, 404):
            until(lambda url=url: get(url)[0] == Upstream.status, "the status")


def test_forged_host_has_a_cache_of_its_own(proxy: str) -> None:
    for forged in ({"Host": "evil.example"}, {"X-Forwarded-Proto": "https"}):
        theirs = seen(f"{proxy}sales/cup/", **forged)
        ours = seen(f"{proxy}sales/cup/", Host="shop.example")
        assert ours["served"] != theirs["served"]
        assert ours["host"] == "shop.example"


def test_static_files_are_kept_in_both_codings(proxy: str) -> None:
    for accepted in ("gzip, br", "", "identity"):
        got = [seen(f"{proxy}static/css/shop.css", **{"Accept-Encoding": accepted}) for _ in "ab"]
        assert got[0]["served"] == got[1]["served"]
        assert got[0].get("accept-encoding", "") == ("gzip" if "gzip" in accepted else "")


def test_each_response_has_the_name_of_its_request(proxy: str) -> None:
    def name() -> str:
        forged = {"X-Request-ID": "forged"}
        request = urllib.request.Request(f"{proxy}sales/cup/", headers=forged)  # noqa: S310
        with urllib.request.urlopen(request, timeout=20) as response:  # noqa: S310
            (given,) = response.headers.get_all("X-Request-ID")
            return str(given)

    names = {name() for _ in range(5)}
    assert [len(one) for one in names] == [32] * 5


def test_log_has_no_link_that_resets_a_password(upstream: str) -> None:
    """A reader of the log could set the password first. The controls are other pages."""
    with Nginx(web=upstream) as nginx:
        for path in ("accounts/reset/MQ/c7x-secret/?next=/", "accounts/reset/sent/", "orders/?a=b"):
            assert get(nginx.url + path)[0] == 200

        def logged() -> set[str]:
            lines = [json.loads(line) for line in nginx.log.read_text().splitlines() if "{" in line]
            return {line["uri"] for line in lines if line["status"] == 200}

        # nginx writes a line after it has sent the response.
        wanted = {"/accounts/reset/***", "/accounts/reset/sent/", "/orders/?a=b"}
        until(lambda: wanted <= logged(), "the lines of the log")
        assert "secret" not in nginx.log.read_text()
    port, mark = reserve_port()
    with mark, Nginx(web=f"{HOST}:{port}") as nginx:  # whose errors are logged, too
        for path in ("accounts/reset/MQ/c7x-secret/", "orders/?a=b"):
            assert get(nginx.url + path)[0] in (502, 503)
        until(lambda: '"GET /orders/?a=b' in nginx.log.read_text(), "the error of the control")
        assert "secret" not in nginx.log.read_text()


post = partial(get, data=b"")


def test_burst_of_sign_ins_waits(proxy: str) -> None:
    """Twenty a second pass; the control is a crowd of purchases, which do not wait."""

    def has_waited(path: str) -> bool:
        began = time.monotonic()
        with ThreadPoolExecutor(30) as pool:
            assert {code for code, _ in pool.map(post, [proxy + path] * 30)} == {200}
        return time.monotonic() - began > 29 / 20

    assert has_waited("accounts/sign-in/")
    until(lambda: not has_waited("sales/cup/buy/"), "a crowd that is served at once")
    assert get(f"{proxy}accounts/sign-in/")[0] == 200


def test_too_many_sign_ins_are_refused(proxy: str) -> None:
    """Those that wait are given up here, so that the test need not wait for them."""
    address = (HOST, int(proxy.rsplit(":", 1)[1].strip("/")))
    form = b"POST /accounts/sign-in/ HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n"
    with ExitStack() as waiting:

        def refusal() -> bytes:
            for _ in range(250):
                wire = waiting.enter_context(socket.create_connection(address, timeout=20))
                wire.sendall(form)
            said = wire.recv(4096) if select([wire], [], [], 1)[0] else b""
            return said if b" 429 " in said else b""

        refused = until(refusal, "a line that is full")
    assert b"Retry-After: 10\r\n" in refused
    assert b"try again" in refused


class Strict(Nginx):
    """Lets each client sign in once, and believes the address that a client claims."""

    def command(self) -> list[str]:
        command, file = super().command(), self.folder / "nginx.conf"
        claimed = f"server_tokens off; set_real_ip_from {HOST}; real_ip_header X-Forwarded-For;"
        text = file.read_text().replace("server_tokens off;", claimed)
        text = text.replace(" burst=300 nodelay", "").replace("rate=20r/s", "rate=1000r/s")
        file.write_text(text.replace("rate=5r/s", "rate=1r/m"))
        return command


FIRST_OF_A_CLIENT = {
    "2001:db8:1:2::1": True,
    "2001:db8:1:2:ffff::2": False,
    "2001:db8:1:2:0a0a:0a0a:0a0a:0a0a": False,
    "2001:db8:1:3::1": True,
    "2001:db8:0a0a::1": True,
    "203.0.113.1": True,
    "203.0.113.2": True,
    "203.0.113.1 ": False,
    "::ffff:198.51.100.1": True,
    "::ffff:198.51.100.2": True,
}


def test_sign_ins_are_limited_for_each_network_of_a_customer(upstream: str) -> None:
    """A customer has 2**64 addresses of IPv6; each had a limit of its own."""
    with Strict(web=upstream) as nginx:
        codes = {
            address: post(f"{nginx.url}accounts/sign-in/", **{"X-Forwarded-For": address})[0]
            for address in FIRST_OF_A_CLIENT
        }
    assert {one: code == 200 for one, code in codes.items()} == FIRST_OF_A_CLIENT


def test_photo_of_a_product_may_be_large_and_is_kept(proxy: str) -> None:
    for path in ("admin/inventory/product/add/", "admin/inventory/product/1/change/"):
        assert get(proxy + path, bytes(8_500_000))[0] == 200
        assert get(proxy + path, bytes(9_500_000))[0] == 413
    assert get(f"{proxy}accounts/profile/", bytes(3_200_000))[0] == 413
    photo = f"{proxy}media/products/0123456789abcdef.webp"
    assert get(photo) == get(photo)
    assert Upstream.requests["/media/products/0123456789abcdef.webp"] == 1


def test_web_that_takes_no_connection_is_passed_over(upstream: str) -> None:
    """Its host is gone, so that nothing refuses the connection; a form was not sent yet."""
    port = int(upstream.rpartition(":")[2])
    with ExitStack() as stack:
        gone = stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(2):  # fill its queue
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(gone.getsockname())
        names = stack.enter_context(Names(lambda _: ["127.0.0.2", HOST]))
        nginx = stack.enter_context(Nginx(web=f"web:{port}", resolver=names.url))
        with ThreadPoolExecutor(16) as pool:
            forms = [None, b"a form"] * 8
            codes = [*pool.map(lambda form: get(f"{nginx.url}orders/", form)[0], forms)]
    assert set(codes) == {200}


def test_only_the_name_server_of_the_engine_is_asked(upstream: str) -> None:
    """Podman names that of its host as well, which knows no container: one 503 in five seconds."""
    asked = Counter[str]()

    def known(name: str) -> list[str]:
        asked[name] += 1
        return [HOST]

    with Names(known) as engine, Names(lambda _: []) as host:
        found = {"NGINX_LOCAL_RESOLVERS": f"{engine.url} {host.url}"}
        file = ROOT / "deploy/first-resolver.envsh"  # the image passes over what is not executable
        script = f'test -x {file} && . {file} && echo "$NGINX_LOCAL_RESOLVERS"'
        resolver = output("sh", "-c", script, env=found).strip()
        with Nginx(web=f"web:{upstream.rpartition(':')[2]}", resolver=resolver) as nginx:

            def is_served() -> bool:
                assert get(f"{nginx.url}orders/")[0] == 200
                return asked["web"] > 4

            until(is_served, "questions of both processes")


def test_stop_does_not_wait_for_clients_that_have_their_reply(upstream: str) -> None:
    """Some do not hang up; nginx waited five seconds for them, and nobody could buy."""
    form = b"POST /sales/cup/buy/ HTTP/1.1\r\nHost: shop\r\nConnection: close\r\n"
    with (
        Nginx(web=upstream) as nginx,
        socket.create_connection((HOST, nginx.port), timeout=20) as wire,
    ):
        wire.sendall(form + b"Content-Length: 6\r\n\r\na form")
        while wire.recv(65536):
            pass
        began = time.monotonic()
        os.kill(nginx.pid, signal.SIGQUIT)
        until(lambda: not nginx.is_running, "the end of nginx")
        assert time.monotonic() - began < 4
