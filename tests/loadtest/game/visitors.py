"""Measure the game: `python -m tests.loadtest.game.visitors [--visitors 8] [--seconds 20]`.

It starts gunicorn with two workers and a Redis of its own. All visitors step at once, without a
pause, over HTTP and with the page rendered. It prints the median time of a step.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

from devservers import Redis, reserve_port
from devservers.base import HOST
from devservers.faults.waiting import until
from devservers.temporary import temporary_directory

ROOT = Path(__file__).parents[3]
NUMBERS = itertools.count(1)
STEPS = "AABBBA"
"""An order that wins the race, and leaves a step for each request."""


class Visitor:
    """A browser without script, apart from the header of htmx."""

    def __init__(self, site: str) -> None:
        self.site, self.jar = site, CookieJar()
        self.opener = build_opener(HTTPCookieProcessor(self.jar))
        self.opener.addheaders = [("X-Forwarded-For", f"192.0.2.{next(NUMBERS)}")]

    def get(self, path: str) -> str:
        with self.opener.open(self.site + path, timeout=60) as response:
            return str(response.url)

    def post(self, path: str, part: bool = True, **form: object) -> str:
        token = next(cookie.value for cookie in self.jar if cookie.name == "csrftoken")
        headers = {"X-CSRFToken": str(token)} | ({"HX-Request": "true"} if part else {})
        request = Request(self.site + path, urlencode(form).encode(), headers)  # noqa: S310
        with self.opener.open(request, timeout=60) as response:
            response.read()
            return str(response.url)


def play(site: str, seconds: float, steps: list[float], starts: list[float]) -> None:
    """Play the race again and again, and note the seconds of each step."""
    visitor = Visitor(site)
    visitor.get("/learn/race/")
    began = time.monotonic()
    game = visitor.post("/learn/race/play/", part=False).removeprefix(site)
    starts.append(time.monotonic() - began)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        for turn, buyer in enumerate(STEPS):
            began = time.monotonic()
            visitor.post(f"{game}act/", action=f"{buyer}-step", turn=turn)
            steps.append(time.monotonic() - began)
        visitor.post(f"{game}act/", level="race", guarded=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visitors", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    folder = temporary_directory("visitors")
    (folder / "static").mkdir()
    port, mark = reserve_port()
    site, steps, starts = f"http://{HOST}:{port}", list[float](), list[float]()
    with Redis() as redis:
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "shop.settings.lab",
            "DATABASE_URL": f"sqlite:///{folder / 'db.sqlite3'}",
            "REDIS_URL": redis.url,
            "CACHE_URL": "",
            "SHOP_VAR": str(folder),
            "LAB_GUEST_LIMIT": "1000/minute",
            "PROXY_HOPS": "1",
            "LOG_LEVEL": "ERROR",
            "DEBUG": "1",
        }
        migrate = [sys.executable, "manage.py", "migrate", "--verbosity=0"]
        subprocess.run(migrate, cwd=ROOT, env=env, check=True)
        command = [sys.executable, "-m", "gunicorn", "shop.wsgi", "--bind", f"{HOST}:{port}"]
        command += ["--workers=2", "--threads=8", "--worker-class=gthread", "--log-level=error"]
        with subprocess.Popen(command, cwd=ROOT, env=env) as server:
            until(lambda: _answers(site), "the server")
            given = (site, asked.seconds, steps, starts)
            threads = [threading.Thread(target=play, args=given) for _ in range(asked.visitors)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            server.terminate()
    mark.close()
    shutil.rmtree(folder)
    milliseconds = sorted(1000 * step for step in steps)
    sys.stdout.write(
        f"{asked.visitors} visitors, {len(steps)} steps: "
        f"median {statistics.median(milliseconds):.0f} ms, "
        f"p95 {milliseconds[int(0.95 * len(steps))]:.0f} ms; "
        f"starts {min(starts):.1f} to {max(starts):.1f} s; load {os.getloadavg()[0]:.1f}\n"
    )


def _answers(site: str) -> bool:
    try:
        return bool(Visitor(site).get("/livez"))
    except OSError:
        return False


if __name__ == "__main__":
    main()
