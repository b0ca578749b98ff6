"""The workload "stock": a shop sells through its own middleware while its stores fail.

Customers send forms with keys, repeat them, cut connections and send again, cancel and pay. The
judges compare what they were told with the rows that are left, and share no code with the shop:

- audit: the shop's own audit of each sale finds nothing;
- promises: an acknowledged key has one order, its answers agree, and a final "sold out" none;
- units: the answers are linearizable under the model of a stock;
- liveness: after the last fault, the queue empties and a unit that is left can be bought.
"""

import json
import logging
import math
import random
import threading
import time
import traceback
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.db import DatabaseError, close_old_connections, connections

from devservers import HOST
from loadtest.history.linearizability import Operation, check, operations_of
from loadtest.history.lock_models import SOLD_OUT, Stock
from loadtest.history.recorder import Event, Recorder, dump, history
from loadtest.load.http.buyers import Buyer, sign_in
from loadtest.load.sale import open_sale, remove_sale
from loadtest.torture.commands import Commands
from loadtest.torture.judge import BOUND, BUDGET, Judgement
from loadtest.torture.plan import CONTROLS, Plan, Terms
from loadtest.torture.workload import ALIAS, Work
from locking import policy
from locking.models import LockPolicy
from shop.administration.audit import audit_sale
from shop.errors import STORE_ERRORS, ShopError
from shop.models import Order, RejectedReservation, Sale, User, digest
from shop.orders.service import cancel_order, pay_order
from shop.purchase.admission import MAX_AGE
from shop.purchase.place_order import place_order
from shop.reservations import store
from shop.reservations.consumer import Consumer
from shop.reservations.reconciliation import reconcile
from shop.reservations.reserve import reserve

CUSTOMERS = 40
"""Buyers of a run; one more asks for a unit at the end."""
MOST_SENDS, CUT_SHARE = 5, 0.3
"""Sends of a form, and the share of those whose connection is cut."""
SHOP_BOUND = BOUND + store.FILL_TIMEOUT
"""Seconds after the last fault: a process that was killed may have been filling a queued sale."""
FILE = "shop.json"
REFUSED = (DatabaseError, ShopError, *STORE_ERRORS)
UNDECIDED = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
Key = tuple[int, str]
"""A customer, and the idempotency key of a form."""


class ShopCommands(Commands):
    """The child's side, also of runs with a shop."""

    def open_sales(self, *, names: list[str], terms: list[Any]) -> dict[str, Any]:
        """Set the policy, and open sales with their customers; those of the last run go."""
        assert self.recorder is not None
        asked = Terms(*terms)
        for sale in Sale.objects.all():
            remove_sale(sale)
        self.activate(alias=asked.lock)
        LockPolicy.objects.filter(pk=1).update(mode=asked.strategy)
        policy.invalidate()
        kind = Sale.Fulfilment.QUEUED if asked.is_queued else Sale.Fulfilment.DIRECT
        options: dict[str, Any] = {"limit_per_customer": asked.limit, "fulfilment": kind}
        sales = {name: open_sale(name, asked.units, product=name, **options).pk for name in names}
        buyers = [
            (one.user.pk, one.cookies, one.session, one.csrf) for one in sign_in(CUSTOMERS + 1)
        ]
        content = {"sales": sales, "buyers": buyers, "is_queued": asked.is_queued}
        (self.recorder.folder / FILE).write_text(json.dumps(content))
        return {"ok": True}

    def switch(self, *, alias: str) -> dict[str, Any]:
        """Switch the policy; in a shop also the write strategy, which is exact without a lock."""
        if not Sale.objects.exists():
            return super().switch(alias=alias)
        mode = random.choice(("conditional", "fenced"))
        row = policy.switch(backend=alias, mode=mode, reason="torture")
        return {"ok": True, "epoch": row.epoch}

    def workload(self, kind: str) -> type[Work]:
        """Return the class of a workload."""
        return Shopping if kind == "stock" else super().workload(kind)

    def work(self, *, kind: str, threads: int, **options: Any) -> Any:
        """Work as the other workloads do; in a shop, twice the threads, and a consumer."""
        if kind != "stock":
            return super().work(kind=kind, threads=threads, **options)
        settings.BUY_LIMIT = "100000/second"
        logging.disable()  # each 503 would be a line
        stop, errors = threading.Event(), list[str]()

        def consume() -> None:
            try:
                Consumer(stop).run()
            except Exception:  # noqa: BLE001 - whichever it is, the consumer has ended
                errors.append(traceback.format_exc(limit=-6))

        consumer = threading.Thread(target=consume)
        consumer.start()
        try:
            reply = super().work(kind=kind, threads=2 * threads, **options)
        finally:
            stop.set()
            consumer.join()
        return {**reply, "errors": [*reply["errors"], *errors]}

    def probe(self, *, names: list[str], kind: str, timeout: float) -> dict[str, Any]:
        """Buy a unit of each sale that has one left, and return the sales as they are then."""
        if kind != "stock":
            return super().probe(names=names, kind=kind, timeout=timeout)
        started, missing, sales = time.monotonic(), [], {}
        for name in names:
            end, wrong = time.monotonic() + timeout, "no reply"
            while wrong and time.monotonic() < end:
                try:
                    wrong = _unsold(name)
                except REFUSED as error:
                    wrong = repr(error)
                    connections.close_all()
                    time.sleep(0.05)
            missing += [f"{name}: {wrong}"] if wrong else []
            sales[name] = _facts(name)
        return {"missing": missing, "sales": sales, "seconds": time.monotonic() - started}

    def leftovers(self, *, run: str, **options: Any) -> dict[str, Any]:
        """Return what is left over; in a shop, the locks of all sales count."""
        assert self.recorder is not None
        is_shop = (self.recorder.folder / FILE).exists()
        return super().leftovers(run="sale:" if is_shop else run, **options)


def _unsold(name: str) -> str:
    """Write what is queued, then buy a unit; return what is wrong."""
    sale = Sale.objects.select_related("stock").get(slug=name)
    if sale.is_queued:
        Consumer(threading.Event()).round()
        reconcile(sale=sale)
        sale.refresh_from_db()
        if waiting := store.backlog(sale=sale):
            return f"{waiting} reservations wait"
    if sale.left:
        buyer = User.objects.get(username=f"buyer-{CUSTOMERS}")
        buy = reserve if sale.is_queued else place_order
        buy(customer_id=buyer.pk, sale=sale, quantity=1, key=f"last of {name}")
        if sale.is_queued:
            Consumer(threading.Event()).round()
    return ""


def _facts(name: str) -> dict[str, Any]:
    """Return the rows of a sale and the result of its audit."""
    sale = Sale.objects.select_related("stock").get(slug=name)
    audit, rows = audit_sale(sale=sale), dump(sale)
    breaches = list(audit.breaches)
    if audit.reserved or audit.drift:
        breaches.append(f"{audit.reserved} units are reserved in Redis, the drift is {audit.drift}")
    rejected = RejectedReservation.objects.filter(sale=sale).values_list("number", "reason")
    return {
        "id": sale.pk,
        "breaches": breaches,
        "stocked": rows.stocked,
        "limit": rows.limit,
        "orders": [list(one) for one in rows.orders],
        "rejected": dict(rejected),
    }


class Shopping(Work):
    """The customers of one process; each thread serves one after the other."""

    def __init__(self, recorder: Recorder, *options: Any) -> None:
        super().__init__(recorder, *options)
        found = json.loads((recorder.folder / FILE).read_text())
        self.sales = {name: Sale(pk=pk, slug=name) for name, pk in found["sales"].items()}
        self.buyers = [Buyer(User(pk=pk), *rest) for pk, *rest in found["buyers"][:CUSTOMERS]]
        self.shop = WSGIHandler()
        self.bought: list[dict[str, Any]] = []

    def stock(self, rng: random.Random) -> None:
        """Buy, or change an order that was bought before."""
        if self.bought and rng.random() < 0.3:
            form = self.bought.pop(rng.randrange(len(self.bought)))
            self.change(form, rng.choice(("cancel", "cancel", "pay")))
        else:
            self.buy(rng)
        time.sleep(rng.choice((0.0, 0.005, 0.03)))

    def buy(self, rng: random.Random) -> None:
        """Send a form until its answer is final; sometimes cut the connection before."""
        buyer, name = rng.choice(self.buyers), rng.choice(self.names)
        form = {"sale": name, "user": buyer.user.pk, "key": uuid.uuid4().hex}
        form["quantity"] = rng.choice((1, 1, 2))
        cut: list[threading.Thread] = []
        for _ in range(MOST_SENDS):
            if rng.random() < CUT_SHARE:
                cut.append(threading.Thread(target=self.send_and_cut, args=(buyer, form)))
                cut[-1].start()
                cut[-1].join(rng.choice((0.0, 0.01, 0.1)))
            elif self.send(buyer, form, is_cut=False):
                break
            time.sleep(rng.uniform(0.01, 0.1))
        for thread in cut:
            thread.join()

    def send_and_cut(self, buyer: Buyer, form: dict[str, Any]) -> None:
        """Send a form whose answer the customer does not get."""
        try:
            self.send(buyer, form, is_cut=True)
        except Exception:  # noqa: BLE001 - whichever it is, the shop does not promise it
            self.errors.append(traceback.format_exc(limit=-6))
        finally:
            connections.close_all()

    def send(self, buyer: Buyer, form: dict[str, Any], *, is_cut: bool) -> bool:
        """Send a form; return True if the answer is final."""
        with self.recorder.operation("buy", is_cut=is_cut, **form) as result:
            status, headers, body = self.post(buyer, form)
            result |= {"type": "unknown", "status": status}
            error = body.get("error", "")
            is_final = status not in UNDECIDED and "Retry-After" not in headers
            if status in (HTTPStatus.CREATED, HTTPStatus.ACCEPTED):
                result |= {"type": "ok", "order": body["url"]}
            elif status == HTTPStatus.CONFLICT and error in ("sold_out", "limit"):
                name = SOLD_OUT[0] if error == "sold_out" else error
                result |= {"type": "fail", "error": name, "is_final": is_final}
            elif status not in UNDECIDED:
                raise AssertionError(f"the answer to {form} is {status} {body}")
        self.counts[f"answers {status}"] += 1
        if result.get("order") and not is_cut:
            self.counts["grants"] += 1
            self.bought.append(form)
        return is_final

    def post(self, buyer: Buyer, form: dict[str, Any]) -> tuple[int, dict[str, str], Any]:
        """Return the shop's response to a form with a purchase token."""
        sale = self.sales[form["sale"]]
        text = buyer.form(sale, key=form["key"], is_first=False)
        body = text.replace("quantity=1", f"quantity={form['quantity']}").encode()
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": f"/sales/{sale.slug}/buy/",
            "SERVER_NAME": HOST,
            "SERVER_PORT": "80",
            "HTTP_HOST": HOST,
            "HTTP_ACCEPT": "application/json",
            "HTTP_COOKIE": buyer.cookies,
            "CONTENT_TYPE": "application/x-www-form-urlencoded",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.url_scheme": "http",
            "wsgi.input": BytesIO(body),
        }
        head: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], *_: Any) -> Callable[[bytes], int]:
            head.extend((status, headers))
            return len

        response = self.shop(environ, start)
        content = b"".join(response)
        response.close()
        return int(head[0][:3]), dict(head[1]), json.loads(content)

    def change(self, form: dict[str, Any], do: str) -> None:
        """Cancel or pay an order that has been acknowledged."""
        asked = {"customer_id": form["user"], "key": digest(form["key"])}
        close_old_connections()
        try:
            order = Order.objects.select_related("sale").filter(**asked).first()
            if order is not None:
                with self.recorder.operation(do, **form):
                    (cancel_order if do == "cancel" else pay_order)(order=order)
                self.counts[do] += 1
        except REFUSED:
            self.counts[f"{do} refused"] += 1


def judge_sales(plan: Plan, folder: Path, sales: dict[str, Any]) -> Judgement:
    """Judge the answers of a run and the sales that it left."""
    events, found = history(folder), Judgement()
    sent: dict[str, dict[Key, list[Operation]]] = {name: defaultdict(list) for name in sales}
    for one in operations_of(events):
        if one.do in ("buy", "cancel"):
            event = one.event
            sent[event["sale"]][event["user"], event["key"]].append(one)
    for name, sale in sales.items():
        found.violations += [f"audit: {name}: {breach}" for breach in sale["breaches"]]
        found.violations += [f"promises: {name}: {one}" for one in _broken(plan, sale, sent[name])]
        units = list(_units(plan, sale, sent[name]))
        for verdict in check(units, Stock(units=sale["stocked"]), budget=BUDGET):
            found.undecided += verdict.verdict == "undecided"
            if verdict.verdict == "illegal":
                wrong = verdict.wrong
                found.violations.append(f"units: {name}: no order of the answers explains {wrong}")
    if found.violations:
        found.violations.append(f"terms: {plan.terms}")
    found.facts = {"events": len(events)}
    return found


def _broken(plan: Plan, sale: dict[str, Any], sent: dict[Key, list[Operation]]) -> Iterator[str]:
    """Yield the promises to customers that the rows break."""
    rows = _rows(sale)
    if len(rows) < len(sale["orders"]):
        yield "a key has two orders"
    taken: Counter[int] = Counter()
    for _, customer, _, quantity, status in sale["orders"]:
        taken[customer] += quantity * (status in Order.LIVE)
    yield from (f"customer {one} has {n} units" for one, n in taken.items() if n > sale["limit"])
    terms = plan.terms
    assert terms is not None
    is_exclusive = terms.lock == ALIAS and plan.backend not in CONTROLS
    for (user, key), tries in sent.items():
        buys = [one for one in tries if one.do == "buy"]
        answers = {one.event["order"] for one in buys if one.outcome == "ok"}
        if len(answers) > 1:
            yield f"key {key} got {len(answers)} different answers"
        row = rows.get((user, digest(key)))
        number = digest(f"{user}.{sale['id']}.{digest(key)}")[:16].upper()
        reason = sale["rejected"].get(number)
        if answers and not row and (reason is None or is_exclusive):
            yield f"key {key} was acknowledged, but has no order ({reason})"
        final = [one for one in buys if one.event.get("is_final") and not one.event["is_cut"]]
        if row and any(one.event["error"] == SOLD_OUT[0] for one in final):
            yield f'key {key} got a final "sold out", but has order {row[0]}'


def _rows(sale: dict[str, Any]) -> dict[Key, Sequence[Any]]:
    return {(row[1], row[2]): row for row in sale["orders"]}


def _units(plan: Plan, sale: dict[str, Any], sent: dict[Key, list[Operation]]) -> list[Event]:
    """Return the history for the model: each key once, with the outcome that its rows show.

    A refusal may be as old as the sale that a process remembers. Those of queued sales are left
    out: units that are returned are offered again later.
    """
    rows, events = _rows(sale), list[Event]()
    assert plan.terms is not None

    def add(do: str, called: float, returned: float, kind: str = "ok", **fields: Any) -> None:
        call = {"actor": "key", "id": len(events), "do": do, "t": called, "type": "invoke"}
        events.append({**call, **fields})
        if returned < math.inf:
            events.append({**call, **fields, "t": returned, "type": kind})

    for (user, key), tries in sent.items():
        form = {"user": user, "key": key, "quantity": tries[0].event["quantity"]}
        row = rows.get((user, digest(key)))
        buys = [one for one in tries if one.do == "buy" and one.outcome != "fail"]
        if row and buys:
            add("buy", *_span(buys), order=row[0], **form)
            cancels = [one for one in tries if one.do == "cancel" and one.outcome != "fail"]
            if cancels and row[4] == Order.Status.CANCELLED:
                add("cancel", *_span(cancels), order=row[0])
        for one in tries:
            if one.event.get("error") == SOLD_OUT[0] and not plan.terms.is_queued:
                called = one.called - round(MAX_AGE * 1e9)
                add("buy", called, one.returned, "fail", error=SOLD_OUT[0], **form)
    return sorted(events, key=lambda event: int(event["t"]))


def _span(tries: Iterable[Operation]) -> tuple[int, float]:
    """Return the first call and the first successful return."""
    known = list(tries)
    ends = [one.returned for one in known if one.outcome == "ok"]
    return min(one.called for one in known), min(ends, default=math.inf)
