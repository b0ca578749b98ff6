"""Programs of a queued sale: customers reserve in Redis, order writers write the orders."""

from collections.abc import Sequence
from contextlib import suppress

from django.conf import settings

from inventory.queries import ledger_of
from loadtest.load.sale import open_sale
from locking import LockError, locks, policy
from locking.backends.base import Backend
from locking.models import LockPolicy
from shop.errors import SoldOut
from shop.models import CustomerQuota, Order, RejectedReservation, Sale, User
from shop.reservations import order_writer, reconciliation, store
from shop.reservations.reserve import reserve
from shop.sales.purchase_request import PurchaseRequest
from shop.sales.stock_lock import lock_name
from verification.interleavings.gates import WAITS
from verification.interleavings.perform import Runs
from verification.interleavings.programs import LEDGER, LOST, OVERSOLD, Program
from verification.interleavings.schedule import Choice, Client, Schedule
from verification.interleavings.worlds import NO_REPETITION, REDIS, TTL, RedisWorld

GATED = frozenset(
    ("redis_take", "redis_release", "reserve", "settle", "SELECT shop_order", "BEGIN IMMEDIATE")
)
"""The operations before which clients stop; the others read what only these change."""


class Reservations(Runs):
    """The clients `reserve` a unit, and `write` the orders of all reservations."""

    def __init__(self, program: Program, url: str) -> None:
        settings.LOCKS["redis"]["TTL"] = TTL
        row = {"backend": "redis", "mode": program.strategy, "state": LockPolicy.State.STEADY}
        LockPolicy.objects.update_or_create(pk=1, defaults=row)
        policy.invalidate()
        vars(locks["redis"].backend)["pending_releases"] = NO_REPETITION
        slug = f"interleavings-{Sale.objects.count()}"
        queued = Sale.Fulfilment.QUEUED
        self.sale = open_sale(slug, program.stock, product="queued", fulfilment=queued)
        self.customers = {
            name: User.objects.create(username=f"{slug}-{name}").pk for name in program.clients
        }
        world = RedisWorld(REDIS, [url], f"lock:{{{lock_name(self.sale.pk)}}}")
        super().__init__(program, world, self.sale.stock_id)
        reconciliation.load(sale=self.sale)
        state = store.keys_of(self.sale).state
        world.ask(0, "COPY", state, f"saved:{state}")
        for client in self.clients:
            client.gated = GATED | {WAITS}
        for name in program.clients:  # open the connections, and load the scripts
            with suppress(SoldOut):
                self._buy(name)
        order_writer.write(sale=self.sale)

    def perform(self, prefix: Sequence[Choice]) -> tuple[Schedule, str]:
        """Run the program with the policy as it is: reading it is no part of the program."""
        policy.current(0)
        return super().perform(prefix)

    def _is_held_by_dead(self) -> bool:
        # Another writer's lease may end as well: nothing that is promised depends on it.
        return any(one.has_crashed for one in self.clients) and self.world.is_held()

    def _reset(self) -> None:
        for lease in list(locks["redis"].held.values()):
            lease.forget()  # that of a client that crashed
        lock = f"lock:{{{lock_name(self.sale.pk)}}}"
        keys = store.keys_of(self.sale)
        assert isinstance(self.world, RedisWorld)
        self.world.ask(0, "DEL", lock, f"{lock}:waiters", *keys)
        self.world.ask(0, "COPY", f"saved:{keys.state}", keys.state)
        self.world.note_change()
        for model in (Order, RejectedReservation, CustomerQuota):
            table = model._meta.db_table
            self.world.sql.execute(f"DELETE FROM {table} WHERE sale_id = ?", (self.sale.pk,))  # noqa: S608
        self.world.reset_stock(self.stock_id, self.program.stock)

    def _buy(self, name: str) -> str:
        customer = self.customers[name]
        return reserve(
            PurchaseRequest(customer_id=customer, sale=self.sale, quantity=1, key=f"key-{name}")
        ).number

    def _speak(self, client: Client, backend: Backend) -> None:
        for word in self.program.clients[client.label].split():
            client.memory.update(word=word, holds=True)
            try:
                if word == "reserve":
                    client.memory["accepted"] = self._buy(client.label)
                else:
                    order_writer.write(sale=self.sale)
            except (SoldOut, LockError):
                pass

    def _judge(self) -> str:
        self.world.end_lease()  # of a writer that crashed
        order_writer.write(sale=self.sale)
        reconciliation.reconcile(sale=self.sale, thoroughly=True)
        ledger, state = ledger_of(stock_id=self.stock_id), store.read_state(sale=self.sale)
        if sum(ledger.per_order.values()) > self.program.stock:
            return OVERSOLD
        orders = set(Order.objects.filter(sale=self.sale).values_list("number", flat=True))
        accepted = {one.memory["accepted"] for one in self.clients if "accepted" in one.memory}
        if accepted != orders or orders != ledger.per_order.keys():
            return LOST
        is_even = ledger.available + len(orders) == self.program.stock
        agrees = state is not None and (state.stock, state.queued) == (ledger.available, 0)
        return "" if is_even and agrees else LEDGER
