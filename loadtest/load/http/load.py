"""A load test of a running shop over HTTP, with its own sale and customers.

It creates these in the shop's database, and so needs the shop's environment. Everything else goes
through the shop: each buyer posts the form of the sale page, and again if the shop hangs up, as
in a restart. The verdict comes from the audit and from counting orders.
"""

import resource
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from itertools import chain
from multiprocessing.sharedctypes import RawArray
from typing import Any, Self

from django.db import DatabaseError, connections, transaction

from devservers.process_pool import PoolFailed, ProcessPool
from loadtest.kernel.params import Params, PlanError, param
from loadtest.kernel.session import ExperimentFailed
from loadtest.load.http.buyers import Buyer, batches, clear_away
from loadtest.load.http.client import DISCONNECTED, RESPONSE_TIMEOUT, Replies, send_requests
from loadtest.load.sale import open_sale, wait_for_orders
from loadtest.load.verdict import UNDECIDED, percentile, sold_verdict
from locking import locks
from shop.administration.audit import StockAudit, audit_sale
from shop.errors import InFlight
from shop.models import Sale

LOCAL = ("127.0.0.1", "localhost")
SENDING = "sending"
"""The step in which the attempts are sent, as `progress` receives it."""
OPEN_FOR = timedelta(hours=1)
MOST_BUYERS = 100_000
UNKNOWN = (*UNDECIDED, InFlight.code, DISCONNECTED)
"""Answers after which the buyer may have an order."""
BATCH = 200
"""Customers created per transaction, because the shop writes at the same time."""


@dataclass(frozen=True, kw_only=True)
class HttpLoad(Params):
    """The parameters of a load test over HTTP."""

    experiment = "http"
    host: str
    port: int
    attempts: int = param(10_000, "number of purchases to send", limits=(1, 1_000_000))
    stock: int = param(1000, "units on sale", limits=(1, 100_000))
    buyers: int = param(
        2000,
        "number of buyers",
        **{"limits": (1, MOST_BUYERS), "default_text": "twice the stock, at most --attempts"},
    )
    processes: int = param(2, "processes that send the purchases", limits=(1, 16))
    connections: int = param(50, "connections per process", limits=(1, 1000))
    fulfilment: str = param(
        Sale.Fulfilment.DIRECT.value,
        "test a queued sale instead of a direct one",
        **{"option": "queued", "const": Sale.Fulfilment.QUEUED.value},
    )
    max_p99_ms: float | None = param(
        None, "exit 1 if the p99 of successful purchases is higher", limits=(0, 10**9)
    )
    min_per_second: float | None = param(
        None, "exit 1 if there are fewer attempts per second", limits=(0, 10**9)
    )

    @classmethod
    def of(cls, options: Mapping[str, Any], **more: Any) -> Self:
        """Return the parameters of a command's options, with two buyers for each unit."""
        asked = super().of(options, **more)
        buyers = options["buyers"] or min(asked.attempts, 2 * asked.stock, MOST_BUYERS)
        return replace(asked, buyers=buyers)


Report = dict[str, Any]


def run_http_load(asked: HttpLoad, progress: Callable[[str, int, int], object]) -> Report:
    """Run it; `progress` is called with the step, the number done and the total."""
    try:
        sale = _open_sale(asked)
    except DatabaseError as error:
        raise PlanError(f"The shop's database is unavailable: {error}") from error
    buyers: list[Buyer] = []
    try:
        _check_shop(asked, sale)
        # Accounts of its own: another load may end, and delete those of its buyers.
        for batch in batches(asked.buyers, sale.slug, BATCH):
            buyers += batch
            progress("signing in", len(buyers), asked.buyers)
        path, host = f"{sale.get_absolute_url()}buy/", f"{asked.host}:{asked.port}"
        forms = [buyer.post(path, buyer.form(sale), host=host) for buyer in buyers]
        # The processes fork: they must not share connections.
        connections.close_all()
        locks.close()
        try:
            report = _drive(asked, forms, lambda done: progress(SENDING, done, asked.attempts))
        except PoolFailed as error:
            raise ExperimentFailed(f"The load on http://{host} ended: {error.reason}") from error
        # Fewer are sent once every buyer has won.
        progress(SENDING, report["attempts"], report["attempts"])
        if sale.is_queued:
            wait_for_orders(sale, report["winners"])
        return {"settings": asdict(asked), **_judge(asked, report, audit_sale(sale=sale))}
    finally:
        clear_away(sale, buyers)


def _open_sale(asked: HttpLoad) -> Sale:
    name = f"lab-http-{time.time_ns():x}"
    with transaction.atomic():
        return open_sale(
            name,
            asked.stock,
            product=name,  # another load may end, and delete its own
            open_for=OPEN_FOR,
            fulfilment=asked.fulfilment,
            is_listed=False,
        )


def _check_shop(asked: HttpLoad, sale: Sale) -> None:
    """Raise PlanError unless a shop at the address shows the sale."""
    where = f"http://{asked.host}:{asked.port}"
    try:
        server = HTTPConnection(asked.host, asked.port, timeout=RESPONSE_TIMEOUT)
        with closing(server):
            server.request("GET", sale.get_absolute_url())
            status = server.getresponse().status
    except (OSError, HTTPException) as error:
        raise PlanError(
            f"No shop responds at {where} ({error}). Run `make demo`, or name a shop with --url."
        ) from error
    if status != 200:
        raise PlanError(
            f"The shop at {where} returned {status} for a new sale. Does it use this database?"
        )


def _drive(asked: HttpLoad, forms: Sequence[bytes], progress: Callable[[int], object]) -> Report:
    """Send the attempts from several processes, and merge the replies."""
    done = RawArray("l", asked.processes)

    def work(number: int) -> tuple[Replies, int, int, int]:
        won, undecided = set[bytes](), set[bytes]()

        def count(request: bytes, kind: str) -> None:
            done[number] += 1
            if kind == "ok":
                won.add(request)
            (undecided.add if kind in UNKNOWN else undecided.discard)(request)

        mine = deque(forms[number :: asked.processes])
        share = len(range(number, asked.attempts, asked.processes))
        heard = send_requests(
            asked.port,
            _attempts(mine, share, won),
            connections=asked.connections,
            seconds=OPEN_FOR.total_seconds(),
            host=asked.host,
            on_reply=count,
            hang_ups=True,
        )
        return heard, len(won), len(undecided - won), _peak_kb()

    progress(0)
    with ProcessPool(work, asked.processes) as pool:
        timeout = OPEN_FOR.total_seconds()
        results = pool.results(timeout=timeout, tick=lambda: progress(sum(done)))
    loads, winners, undecided, peaks = zip(*results, strict=True)
    waits = defaultdict[str, list[float]](list)
    for kind, sent, received in chain.from_iterable(heard.replies for heard in loads):
        waits["won" if kind == "ok" else kind].append((received - sent) * 1000)
    seconds = max(heard.ended for heard in loads) - min(heard.began for heard in loads)
    answers = {
        kind: {
            "count": len(some),
            **{f"p{n}_ms": round(percentile(some, n / 100), 1) for n in (50, 95, 99)},
        }
        for kind, some in sorted(waits.items())
    }
    attempts = sum(map(len, waits.values()))
    return {
        "attempts": attempts,
        "seconds": round(seconds, 2),
        "attempts_per_second": round(attempts / seconds, 1) if seconds else 0.0,
        "answers": answers,
        "winners": sum(winners),
        "undecided": sum(undecided),
        "driver": {
            "processes": asked.processes,
            "peak_mb": round((_peak_kb() + sum(peaks)) / 1024, 1),
        },
    }


def _attempts(buyers: deque[bytes], share: int, won: set[bytes]) -> Iterator[bytes]:
    """Yield the request of each buyer again and again until it has won."""
    while share and buyers:
        buyer = buyers.popleft()
        if buyer not in won:
            buyers.append(buyer)
            share -= 1
            yield buyer


def _peak_kb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _judge(asked: HttpLoad, report: Report, audit: StockAudit) -> Report:
    wanted = min(asked.stock, asked.buyers, asked.attempts)
    won, unknown = report["winners"], report["undecided"]
    verdict, why = sold_verdict(audit, wanted=wanted, confirmed=won, unknown=unknown)
    slow = list(_missed(asked, report))
    if verdict == "ok" and slow:
        verdict, why = "slow", "; ".join(slow)
    orders = audit.sold + audit.held
    return {**report, "orders": orders, "audit": asdict(audit), "verdict": verdict, "why": why}


def _missed(asked: HttpLoad, report: Report) -> Iterator[str]:
    """Yield a sentence for each threshold that was not met."""
    rate, p99 = report["attempts_per_second"], report["answers"].get("won", {}).get("p99_ms", 0)
    if asked.min_per_second is not None and rate < asked.min_per_second:
        yield f"{rate} attempts per second, --min-per-second is {asked.min_per_second:g}"
    if asked.max_p99_ms is not None and p99 > asked.max_p99_ms:
        yield f"p99 of successful purchases is {p99} ms, --max-p99-ms is {asked.max_p99_ms:g}"
