"""Test a whole shop: restarts under load, failed and slow stores.

Example: manage.py lab endure recovery --rounds 1
"""

import json
import os
import time
from argparse import ArgumentParser
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from devservers import Redis
from devservers.faults.ensemble import FailLeader, Partitioned
from devservers.faults.proxy import Proxy
from loadtest.kernel import marked
from loadtest.kernel.params import Params, add_file, param
from loadtest.kernel.terminal import Terminal, check_file
from loadtest.load.stores import ExperimentFailed, PrivateStores

EXPERIMENTS = ("restarts", "recovery", "slow")
DURABLE = ("--appendonly", "yes", "--appendfsync", "always")
"""With "everysec", a Redis that is killed may lose a release that it has confirmed."""
HEADINGS = {
    "do": "fault",
    "blows": "other faults",
    "ok": "as required",
    "lease_held": "lease held (s)",
}
"""Titles of the report's tables and columns, where its names are short."""
VARIABLES = {"database": "DATABASE_URL", "redis": "REDIS_URL"}
PROXIED = {"slow": ("database", "redis"), "recovery": ("redis",)}
"""The stores that an experiment reaches through a proxy."""


@dataclass(frozen=True, kw_only=True)
class Endurance(Params):
    """The size of an experiment."""

    attempts: int = param(100_000, "restarts: number of purchases to send", limits=(100, 1_000_000))
    stock: int = param(1000, "restarts: units on sale", limits=(10, 100_000))
    rounds: int = param(3, "recovery: how many times each fault is injected", limits=(1, 1000))


def add_arguments(parser: ArgumentParser) -> None:
    """Add the experiment and its size."""
    parser.add_argument(
        "what",
        choices=EXPERIMENTS,
        metavar="EXPERIMENT",
        help="restarts: each process restarts under load; recovery: Redis and ZooKeeper fail and "
        "return; slow: a store responds late or not at all",
    )
    Endurance.add_options(parser)
    add_file(parser, "write", "also write it between FILE's markers lab_endure_<experiment>")


def handle(terminal: Terminal, *, what: str, write: Path | None, **options: Any) -> int:
    """Run the experiment on private stores; return 1 unless its verdict is ok."""
    asked = asdict(Endurance.of(options))
    backends = ["redis", "zookeeper"] if what == "recovery" else ["redis"]
    # No order expires, because the units sold are counted.
    return endure(terminal, what, what, asked, backends, pay_within=86_400, write=write)


def endure(
    terminal: Terminal,
    what: str,
    experiment: str,
    asked: dict[str, Any],
    backends: list[str],
    *,
    pay_within: int,
    write: Path | None,
) -> int:
    """Run an experiment on a whole shop, whose orders expire after `pay_within` seconds."""
    check_file("write", write, part := f"lab_endure_{what}")
    report: dict[str, Any] = {"settings": asked, "what": what}
    leader = FailLeader(Partitioned()) if what == "recovery" else None
    own: dict[str, Any] = {"ensemble": leader.ensemble, "redis_config": DURABLE} if leader else {}
    with PrivateStores("mariadb", backends, **own) as stores, ExitStack() as stack:
        if stores.missing:
            raise ExperimentFailed("; ".join(stores.missing.values()))
        proxies: dict[str, Proxy] = {}
        for store in PROXIED.get(what, ()):
            port = stores.ports[store]
            # While the server is down, new connections are refused as without the proxy.
            proxies[store] = stack.enter_context(Proxy(port, connect_timeout=0))
            variable = VARIABLES[store]
            url = stores.environ[variable].replace(f":{port}", f":{proxies[store].port}")
            stores.environ[variable] = url
        stores.environ |= {
            "CELERY_BROKER_URL": stores.environ["REDIS_URL"],
            "BUY_LIMIT": "1000000/second",
            "PAY_WITHIN_SECONDS": str(pay_within),
        }
        del stores.environ["MAX_WAITING"], stores.environ["PURCHASES_PER_GRANT"]
        nodes = [node.port for node in leader.ensemble.nodes] if leader else []
        bar = stack.enter_context(terminal.bar())
        ports = stores.ports | {store: proxy.port for store, proxy in proxies.items()}
        for event in stores.run_experiment(experiment, {"ports": ports, "nodes": nodes, **asked}):
            bar.show(event)
            if event["event"] == "fault" and leader and event["store"] == "zookeeper":
                _fail_leader(leader, event["do"])
            elif event["event"] == "fault":
                _inject(stores, proxies.get(event["store"]), event)
            elif event["event"] == "report":
                report |= event["report"]
    if write:
        marked.write(write, part, markdown(report))
    terminal.show(report, _describe)
    return 0 if report["verdict"] == "ok" else 1


def _describe(terminal: Terminal, report: dict[str, Any]) -> None:
    report.pop("samples", None)  # thousands of lines
    terminal.print(json.dumps(report, indent=1))
    is_ok = report["verdict"] == "ok"
    terminal.print(terminal.verdict(f"Verdict: {report['verdict']}", is_expected=is_ok))


def markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown: a list of facts, and a table for each list of rows."""
    facts = {"load of the machine": f"{os.getloadavg()[0]:.1f}"}
    tables = []
    for name, value in report.items():
        if name in ("samples", "settings", "what", "grew", "expected"):
            continue  # thousands of rows, part of the command, or in the table `growth`
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ([_cell(row.get(key, "")) for key in value[0]] for row in value)
            headings = [HEADINGS.get(key, key.replace("_", " ")) for key in value[0]]
            tables.append(
                f"{HEADINGS.get(name, name).capitalize()}:\n\n{marked.table(headings, rows)}"
            )
        else:
            facts[name] = _cell(value)
    lines = (f"- {name.replace('_', ' ')}: {value}\n" for name, value in facts.items())
    return "\n".join(["".join(lines), *tables])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        cells = {name: _cell(of) for name, of in value.items()}
        return ", ".join(
            f"{name}: ({cell})" if isinstance(value[name], dict) else f"{name}: {cell}"
            for name, cell in cells.items()
        )
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _fail_leader(leader: FailLeader, do: Any) -> None:
    if do == "recover":
        leader.recover()
    else:
        leader.how = do
        leader.inject()


def _inject(stores: PrivateStores, proxy: Proxy | None, event: dict[str, Any]) -> None:
    """Inject a fault into a store, or interrupt Redis for the event's seconds."""
    name, seconds = event["store"], event["seconds"]
    if proxy is None:
        stores.kill(name, back_after=seconds)
        return
    server = stores.servers[name]
    match event["do"]:
        case "slow":
            proxy.delay = seconds
        case "silent":
            proxy.hold()
        case "pause" if isinstance(server, Redis):
            server.pause_clients(seconds)
        case "stop":
            server.pause()
            time.sleep(seconds)
            server.resume()
        case "kill":
            server.kill()
            time.sleep(seconds)
            server.start()
        case "cut":
            proxy.cut(refuse=True)
            time.sleep(seconds)
            proxy.accept()
        case "recover":
            proxy.delay = 0.0
            proxy.cut()  # held messages count as lost
            proxy.resume()
