"""Supervise the demo: embedded stores, web, worker, consumer and beat in one foreground process.

    PORT=8000 REDLOCK=1 .venv/bin/python tools/demo.py

All data is in SHOP_VAR (default: var/). A process that ends is restarted. When the supervisor ends,
all processes that it started end: after Ctrl-C, SIGTERM, a closed terminal and, on Linux, SIGKILL.
"""

import fcntl
import os
import shutil
import sys
import time
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from io import StringIO
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from devservers import HOST, Redis, ServerError, start_all, stop_all  # noqa: E402
from tools.supervisor import Part, check_port, chosen_port, exit_on_signals, say, stop  # noqa: E402

# The variables that name stores; without any of them, the settings look for embedded ones.
STORE_VARIABLES = (
    "DATABASE_URL",
    "REDIS_URL",
    "QUEUE_REDIS_URL",
    "LOCK_REDIS_URL",
    "CACHE_URL",
    "REDLOCK_URLS",
    "ZOOKEEPER_HOSTS",
    "CELERY_BROKER_URL",
)
FIRST_PAGE_SECONDS = 60.0
RESTART_SECONDS = 2.0
"""A process that has ended starts again within this time."""
KEEP = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
EVICT = ("--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru")
# Celery's warning to root, eight lines long; root is usual in a container.
QUIET = "ignore:You're running the worker with superuser privileges"


def claim(var: Path) -> IO[str]:
    """Lock the directory until the file that is returned is closed."""
    try:
        var.mkdir(parents=True, exist_ok=True)
        lock = (var / "demo.lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit(f"\nA demo is running already with its data in {var}.")
    except OSError as error:
        sys.exit(f"\nThe demo cannot write to {var}: {error.strerror}.")
    return lock


def embed(stack: ExitStack, var: Path) -> None:
    """Start a Redis for broker and locks, one for the cache, and five for RedLock if requested."""
    if any(name in os.environ for name in STORE_VARIABLES):
        say("Using the stores that the environment names.")
        return
    folders = [var / "redis"]
    if os.environ.get("REDLOCK", "0") not in ("", "0"):
        folders += [var / f"redlock-{number}" for number in range(1, 6)]
    redis, *masters = (Redis(prefer="embedded", folder=name, config=KEEP) for name in folders)
    cache = Redis(prefer="embedded", folder=var / "cache", config=EVICT)
    servers = [redis, cache, *masters]
    stack.callback(stop_all, servers)
    start_all(servers)
    urls = {"REDIS_URL": redis.url, "CACHE_URL": cache.url, "CELERY_BROKER_URL": redis.url}
    if masters:
        urls["REDLOCK_URLS"] = ",".join(master.url for master in masters)
    # For `manage.py` in another terminal; the demo's processes inherit the environment.
    embedded = var / "embedded.env"
    embedded.write_text("".join(f"{name}={url}\n" for name, url in urls.items()))
    stack.callback(embedded.unlink, missing_ok=True)
    os.environ.update(urls)


def gather_metrics(var: Path) -> None:
    """Make /metrics count the work of all processes since this start."""
    folder = var / "metrics"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(folder)


def prepare() -> list[str]:
    """Update database and static files, and return the lines about the demo accounts."""
    import django
    from django.contrib.auth import get_user_model
    from django.core.management import CommandError, call_command
    from django.db import DatabaseError, connection

    django.setup()
    from shop.management.commands.seed import account_lines

    say("Preparing the database and the static files ...")
    try:
        call_command("migrate", interactive=False, verbosity=0)
        call_command("collectstatic", interactive=False, verbosity=0)
        if not get_user_model().objects.exists():
            say("Filling the shop with products, sales and people ...")
            call_command("seed", stdout=StringIO())
    except (CommandError, DatabaseError) as error:
        sys.exit(f"\nThe shop's data cannot be prepared: {error}.")
    connection.close()
    return account_lines()


def wait_for_first_page(port: int, web: Part) -> None:
    deadline = time.monotonic() + FIRST_PAGE_SECONDS
    while web.process.poll() is None and time.monotonic() < deadline:
        server = HTTPConnection(HOST, port, timeout=5)
        with closing(server), suppress(OSError):  # it does not listen yet
            server.request("GET", "/")
            if (status := server.getresponse().status) == 200:
                return
            sys.exit(f"\nThe first page returned {status}.")
        time.sleep(0.1)
    ended = web.process.poll() is not None
    sys.exit(f"\n{web}." if ended else f"\nNo page in {FIRST_PAGE_SECONDS:g} s.")


def serve(stack: ExitStack, port: int, var: Path, accounts: list[str], started: float) -> NoReturn:
    """Serve until a signal arrives."""
    gunicorn = ["-m", "gunicorn", "shop.wsgi", "--config", "deploy/gunicorn_conf.py"]
    gunicorn += ["--bind", f"{HOST}:{port}", "--workers", "2"]
    gunicorn += ["--graceful-timeout", "3", "--max-requests", "0"]
    celery = ["-W", QUIET, "-m", "celery", "--quiet", "-A", "shop"]
    web = Part("web", sys.executable, *gunicorn)
    parts = [web]
    stack.callback(stop, parts)
    wait_for_first_page(port, web)
    url = f"http://{HOST}:{port}/"
    address = var / "demo.url"  # `lab http` reads it
    stack.callback(address.unlink, missing_ok=True)
    address.write_text(f"{url}\n")
    # After the page: on a small machine, they cost as much to start as it does.
    for name, command in {
        "worker": [*celery, "worker", "--concurrency", "2"],
        "consumer": ["manage.py", "consume_orders"],
        "beat": [*celery, "beat"],
    }.items():
        parts.append(Part(name, sys.executable, *command))
    exit_on_signals(code=0)
    ready = f"The shop is at {url} (ready after {time.time() - started:.1f} s)"
    say("\n".join(["", ready, *accounts, "Ctrl-C stops everything.", ""]))
    while True:
        time.sleep(RESTART_SECONDS)
        for part in parts:
            part.restart_if_ended()


def main() -> None:
    started = float(os.environ.get("SETUP_STARTED", time.time()))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
    var = Path(os.environ.get("SHOP_VAR", ROOT / "var")).resolve()
    os.environ["SHOP_VAR"] = str(var)
    exit_on_signals()
    port = chosen_port()
    try:
        with claim(var), ExitStack() as stack:
            check_port(port)
            stack.callback(say, "Everything is stopped.")
            embed(stack, var)
            gather_metrics(var)
            serve(stack, port, var, prepare(), started)
    except (ServerError, OSError) as error:
        sys.exit(f"\n{error}")


if __name__ == "__main__":
    main()
