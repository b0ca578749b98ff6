"""What a whole shop outlives: restarts under load, killed and slow stores, hours of work."""

import json as encoder
from argparse import ArgumentParser
from contextlib import ExitStack
from typing import Any

from loadtest.faults.proxy import Proxy
from loadtest.plan import PlanError
from loadtest.stores import BrokeOff, Stores
from loadtest.terminal import Terminal

WHAT = ("restarts", "recovery", "slow", "soak")
LIMITS = {
    "attempts": (100, 1_000_000),
    "stock": (10, 100_000),
    "seconds": (12, 86_400),
}
DEFAULTS = {"attempts": 100_000, "stock": 1000, "seconds": 1800}


def add_arguments(parser: ArgumentParser) -> None:
    """Which, and how much of it."""
    parser.add_argument("what", choices=WHAT)
    for name, default in DEFAULTS.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"(default: {default})")
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")


def handle(terminal: Terminal, *, what: str, json: bool, **options: Any) -> int:
    """Run it on a private MariaDB and Redis, and tell."""
    asked = {name: options[name] for name in LIMITS}
    for name, (least, most) in LIMITS.items():
        if not least <= asked[name] <= most:
            raise PlanError(f"{name}: {asked[name]} is not within {least} to {most}")
    report: dict[str, Any] = {"settings": asked}
    with Stores("mariadb", ["redis"]) as stores, ExitStack() as stack:
        if stores.missing:
            raise BrokeOff("; ".join(stores.missing.values()))
        ways: dict[str, Proxy] = {}
        variables = {"database": "DATABASE_URL", "redis": "REDIS_URL"}
        for store, variable in variables.items() if what == "slow" else ():
            port = stores.ports[store]
            ways[store] = stack.enter_context(Proxy(port))
            url = stores.environ[variable].replace(f":{port}", f":{ways[store].port}")
            stores.environ[variable] = url
        stores.environ |= {
            "CELERY_BROKER_URL": stores.environ["REDIS_URL"],
            "BUY_LIMIT": "1000000/second",
        }
        for event in stores.direct("endure", {"what": what, "ports": stores.ports, **asked}):
            if event["event"] == "strike":
                _strike(stores, ways.get(event["store"]), event)
            elif event["event"] == "report":
                report |= event["report"]
    if json:
        terminal.json(report)
    else:
        terminal.console(100).print(encoder.dumps(report, indent=1))
    return 0 if report["verdict"] == "ok" else 1


def _strike(stores: Stores, way: Proxy | None, event: dict[str, Any]) -> None:
    if way is None:
        stores.kill(event["store"], back_after=event["seconds"])
        return
    match event["do"]:
        case "slow":
            way.delay = event["seconds"]
        case "silent":
            way.hold()
        case "heal":
            way.delay = 0.0
            way.cut()  # what was held up is as good as lost
            way.flow()
