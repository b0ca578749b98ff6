"""Admission control: refuse purchases from memory, before they cost a row, a lock or a thread.

Nothing here guards the stock: a purchase checks everything again where it writes.
"""

from typing import NamedTuple, Protocol

from django.conf import settings
from django.utils.functional import Promise

from shop.errors import NotAdmitted, QueueFull, ServiceUnavailable
from shop.models import Order, Sale
from shop.platform import rate_limits
from shop.platform.cache import RefreshingCache
from shop.reservations.store import with_left
from shop.sales.purchase_request import PurchaseRequest, refusal_of
from shop.sales.queries import sale_for_purchase
from shop.sales.waiting_slots import is_queue_full

MAX_AGE = 0.1
"""Seconds for which a process may refuse customers by the state of a sale that it has read."""
FRESH = 0.05
"""Seconds after which one thread reads the sale again while the others use the cached one."""
MAX_SALES = 1000


class GateState(NamedTuple):
    """The state of a customer at a gate, for the sale page."""

    url: str
    """Path of the page of the gate."""
    state: str = "outside"
    """outside, waiting, turn (may buy), over (a turn that has ended) or closed (unavailable)."""
    lasts: float = 0.0
    """Seconds for which the turn lasts in any case."""


class Gate(Protocol):
    """Decides who may buy in a sale, in addition to `admit`: a waiting room, for example."""

    def check(self, *, sale: Sale, customer_id: int) -> None:
        """Raise NotAdmitted, or ServiceUnavailable if the answer is unknown."""

    def state(self, *, sale: Sale, customer_id: int | None) -> GateState | None:
        """Return what the customer has to pass, or has passed; None if the sale is open to all."""

    def figures(self, *, sale: Sale) -> list[tuple[Promise, object]]:
        """Return what staff want to know of it, each with its name; nothing without a gate."""


gates: list[Gate] = []
"""Filled by the applications that have one, when they are ready."""
_sales: RefreshingCache[str, Sale] = RefreshingCache(MAX_SALES)
clear = _sales.clear


def cached_sale(*, slug: str) -> Sale:
    """Return a sale with its stock as they were at most MAX_AGE ago. Raise NotFound.

    For admission only. Each process reads the row at most twenty times a second, and the units of a
    queued sale as often.
    """
    return _sales.get(
        slug, lambda: with_left(sale_for_purchase(slug=slug)), fresh=FRESH, max_age=MAX_AGE
    )


def admit(wanted: PurchaseRequest) -> None:
    """Refuse a purchase that cannot succeed now.

    Raise BadInput, NotOpen, LimitReached, SoldOut, TooMany, NotAdmitted, QueueFull or, if a gate
    cannot be read, ServiceUnavailable.

    Only a client that says that it sends the form for the first time is refused by the state of the
    sale: any other one may have an order with this key, for which the purchase looks first.
    """
    sale, refusal = wanted.sale, refusal_of(wanted)
    if wanted.is_first_attempt and refusal is not None:
        raise refusal
    rate_limits.count_repeated(settings.BUY_LIMIT, "buy", str(wanted.customer_id))
    for gate in gates:
        _pass(gate, wanted)
    if refusal is None and is_queue_full(sale.pk):
        raise QueueFull


def _pass(gate: Gate, wanted: PurchaseRequest) -> None:
    sale, customer_id = wanted.sale, wanted.customer_id
    try:
        gate.check(sale=sale, customer_id=customer_id)
    except (NotAdmitted, ServiceUnavailable):
        if wanted.is_first_attempt:
            raise
        # The form may be the one of an order, which it then gets again.
        sent = Order.objects.filter(sale=sale, customer_id=customer_id, key=wanted.hashed_key)
        if not sent.exists():
            raise
