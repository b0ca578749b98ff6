"""What a whole shop outlives: restarts under load, killed and slow stores, hours of work."""

import json as encoder
from argparse import ArgumentParser
from contextlib import ExitStack
from typing import Any

from loadtest.charts.terminal import Bar, Terminal
from loadtest.faults.ensemble import FailLeader, Partitioned
from loadtest.faults.proxy import Proxy
from loadtest.load.plan import keep_within
from loadtest.load.stores import BrokeOff, Stores

WHAT = ("restarts", "recovery", "slow", "soak")
LIMITS = {
    "attempts": (100, 1_000_000),
    "stock": (10, 100_000),
    "seconds": (12, 86_400),
}


def add_arguments(parser: ArgumentParser) -> None:
    """Which, and how much of it."""
    parser.add_argument("what", choices=WHAT)
    for name, default, meaning in (
        ("attempts", 100_000, "purchases sent by `restarts`"),
        ("stock", 1000, "pieces of `restarts`"),
        ("seconds", 1800, "for which `soak` lasts"),
    ):
        said = f"{meaning} (default: {default})"
        parser.add_argument(f"--{name}", type=int, default=default, help=said)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")


def handle(terminal: Terminal, *, what: str, json: bool, **options: Any) -> int:
    """Run it on a private MariaDB and Redis, and tell."""
    asked = {name: options[name] for name in LIMITS}
    keep_within(LIMITS, asked)
    report: dict[str, Any] = {"settings": asked}
    backends = ["redis", "zookeeper"] if what in ("recovery", "soak") else ["redis"]
    leader = FailLeader(Partitioned()) if what == "recovery" else None
    ensemble = leader.ensemble if leader else None
    with Stores("mariadb", backends, ensemble=ensemble) as stores, ExitStack() as stack:
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
            # In a soak orders expire, too; in a rush nobody shall get another one's piece.
            "PAY_WITHIN_SECONDS": "60" if what == "soak" else "86400",
        }
        del stores.environ["MAX_WAITING"], stores.environ["PURCHASES_PER_GRANT"]
        nodes = [node.port for node in ensemble.nodes] if ensemble else []
        wanted = {"what": what, "ports": stores.ports, "nodes": nodes, **asked}
        bar = stack.enter_context(Bar(disable=json))
        for event in stores.direct("endure", wanted):
            bar.show_step(event)
            if event["event"] == "strike" and leader and event["store"] == "zookeeper":
                _strike_leader(leader, event["do"])
            elif event["event"] == "strike":
                _strike(stores, ways.get(event["store"]), event)
            elif event["event"] == "report":
                report |= event["report"]
    if json:
        terminal.json(report)
    else:
        report.pop("samples", None)  # thousands of lines
        terminal.console(100).print(encoder.dumps(report, indent=1))
    return 0 if report["verdict"] == "ok" else 1


def _strike_leader(leader: FailLeader, do: Any) -> None:
    if do == "heal":
        leader.recover()
    else:
        leader.how = do
        leader.inject()


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
            way.resume()
