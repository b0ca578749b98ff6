"""The course: what the field learned about locks and flash sales, a step for each lesson."""

from dataclasses import dataclass
from typing import NamedTuple

from django.utils.translation import gettext_lazy as _

from loadtest.charts.source import Excerpt
from loadtest.scenarios.scenario import Text

RECIPES, RESERVE = "loadtest/recipes/flash_sale.py", "shop/reservations/lua/reserve.lua"
REDIS_RECIPES = "loadtest/recipes/redis_textbook.py"
STOCK, REDIS_SCRIPTS = "inventory/stock.py", "locking/backends/lua"
SET_NX_PX = Excerpt(REDIS_RECIPES, "self._client.set(key")
NAIVE_WRITE = Excerpt(STOCK, "WRITE = ")
WRITE_CLAIMED = Excerpt(STOCK, "WRITE_CLAIMED = ", "WHERE id")
ONE_PROCESS = Excerpt("locking/backends/process.py", "owned = self._owned.get", "return Grant")
REDIS_TAKE = Excerpt(f"{REDIS_SCRIPTS}/redis_take.lua", "local state", "grant(caller")
WORKER = "loadtest/load/shop_worker.py"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A lesson; its text is in templates/learn/_text.html, ninety words with `notice` at most."""

    name: str
    title: Text
    notice: Text
    broken: Excerpt
    repaired: Excerpt
    scenarios: tuple[str, ...]
    """The first one provides the picture."""


LOCKS = (
    Step(
        name="race",
        title=_("The race"),
        notice=_("Both buyers read 1 and both write 0. No error is raised anywhere."),
        broken=Excerpt("locking/backends/none.py", "def acquire", "return Grant", "return Grant"),
        repaired=REDIS_TAKE,
        scenarios=("no-lock",),
    ),
    Step(
        name="two-processes",
        title=_("Two processes"),
        notice=_(
            "Each process granted its own lock, and the unit was sold twice. "
            "Tests with one process never see this."
        ),
        broken=ONE_PROCESS,
        repaired=REDIS_TAKE,
        scenarios=("lock-of-one-process",),
    ),
    Step(
        name="setnx",
        title=_("SETNX and a crash"),
        notice=_("PTTL -1 means that the key never expires. The next buyer can only give up."),
        broken=Excerpt(REDIS_RECIPES, ".setnx(key"),
        repaired=SET_NX_PX,
        scenarios=("setnx-without-expiry",),
    ),
    Step(
        name="expire",
        title=_("SETNX, then EXPIRE"),
        notice=_("The crash lies between two lines that look like one step."),
        broken=Excerpt(REDIS_RECIPES, "if not self._client.setnx", "return True", "reach("),
        repaired=SET_NX_PX,
        scenarios=("crash-between-setnx-and-expire",),
    ),
    Step(
        name="lease",
        title=_("The work outlasts the lease"),
        notice=_("The lease ends before the write, and both buyers think they hold the lock."),
        broken=Excerpt(WORKER, "early or not renew", "renewer.remove", "renewer.remove"),
        repaired=Excerpt("locking/lease/lease.py", "ttl = None", "self.claim.deadline"),
        scenarios=("work-outlasts-lease",),
    ),
    Step(
        name="owner",
        title=_("Another buyer's lock"),
        notice=_("Buyer B did everything right, and lost its lock all the same."),
        broken=Excerpt(REDIS_RECIPES, "def release", "self._client.delete", "self._client.delete"),
        repaired=Excerpt(f"{REDIS_SCRIPTS}/redis_release.lua", "if holder and holder", "end"),
        scenarios=("delete-successors-lock",),
    ),
    Step(
        name="watchdog",
        title=_("The watchdog"),
        notice=_("Compare how long buyer B waits for the killed holder."),
        broken=Excerpt("loadtest/scenarios/catalogue/holders.py", "LONG_TTL", '"""'),
        repaired=Excerpt("locking/lease/watchdog.py", "elif lease.renew_at", "self._renew, lease"),
        scenarios=("holder-killed",),
    ),
    Step(
        name="fence",
        title=_("A paused holder"),
        notice=_("Both believe that they hold the lock. Only the stock row can decide."),
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "is_claimed = ", "raise StaleFence", then=WRITE_CLAIMED),
        scenarios=("holder-paused", "gil-held"),
    ),
    Step(
        name="failover",
        title=_("Failover and RedLock"),
        notice=_("The promoted replica knows nothing of the first holder."),
        broken=Excerpt(
            "loadtest/scenarios/testbed.py", "def add_lock", "settings.LOCKS", "stores.redis.url"
        ),
        repaired=Excerpt("loadtest/scenarios/testbed.py", "def use_redlock", "self.use("),
        scenarios=("failover-before-replication",),
    ),
    Step(
        name="redlock",
        title=_("The RedLock debate"),
        notice=_("Three of five voted for A, and three of five voted for B."),
        broken=Excerpt("locking/backends/redlock/backend.py", '"RESTART_DELAY": seconds'),
        repaired=Excerpt(
            "locking/backends/redlock/quorum.py", "if restart_delay", "self.votes_from"
        ),
        scenarios=("redlock-amnesia", "redlock-clock-jump"),
    ),
    Step(
        name="zookeeper",
        title=_("ZooKeeper: herd or queue"),
        notice=_("Count the requests. The lock is correct in every recording."),
        broken=Excerpt(
            "loadtest/recipes/zookeeper_herd.py",
            "except NodeExistsError",
            "session.wait_gone",
            "session.wait_gone",
        ),
        repaired=Excerpt(
            "locking/backends/zookeeper/queue.py", "slots is None or", "return ahead[-1:]"
        ),
        scenarios=("herd-against-queue", "polling-against-push"),
    ),
    Step(
        name="mysql",
        title=_("A lock in MySQL"),
        notice=_("The process is gone, its row is not."),
        broken=Excerpt(
            "loadtest/recipes/mysql_row.py", "insert = f", "return Grant", "INSERT {ignore}"
        ),
        repaired=Excerpt("locking/backends/mysql_session.py", "    mint = TOKEN", "owns = "),
        scenarios=("mysql-row-left-by-crash",),
    ),
    Step(
        name="commit",
        title=_("Released before the commit"),
        notice=_("The lock was never held twice, and one unit was sold twice."),
        broken=Excerpt(
            WORKER,
            "if lease is not None and early:",
            "lease.backend.release",
            "lease.backend.release",
        ),
        repaired=Excerpt("shop/purchase/group_commit.py", "with lock as lease", "_write_group("),
        scenarios=("release-before-commit",),
    ),
    Step(
        name="retry",
        title=_("Pressed twice"),
        notice=_("The lock worked, the stock is correct, and the customer has two orders."),
        broken=Excerpt(
            "loadtest/scenarios/catalogue/retries.py", 'key = "1" if', "waited =", "a new form"
        ),
        repaired=Excerpt("shop/purchase/place_order.py", "def _replay(", "return Placed("),
        scenarios=("retry-after-lost-reply",),
    ),
    Step(
        name="shop",
        title=_("What this shop does"),
        notice=_(
            "With naive writes, the unit is sold twice. With conditional ones, the row refuses "
            "buyer A."
        ),
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "CHANGE = ", "COALESCE(%s, fence_token))"),
        scenarios=("forced-switch", "switch-under-load"),
    ),
)

FLASH_SALE = (
    Step(
        name="late-check",
        title=_("A check after the decrement"),
        notice=_("Two units were in stock. Redis says 0, but only one was ordered."),
        broken=Excerpt(RECIPES, "Take a unit, check", "return self.order()", 'return "limit"'),
        repaired=Excerpt(RESERVE, "if ordered +", "'queued', quantity"),
        scenarios=("unit-lost-to-a-check",),
    ),
    Step(
        name="queue",
        title=_("A crash before the queue"),
        notice=_("Two crashes lose two units. In the shop, the same two lose none."),
        broken=Excerpt(RECIPES, "reach(RESERVED)", "reach(POPPED)", "RPUSH"),
        repaired=Excerpt(RESERVE, "'queued', quantity", "XADD"),
        scenarios=("crash-between-redis-and-queue",),
    ),
    Step(
        name="sold-out",
        title=_("The sold-out flag"),
        notice=_("Redis has a unit again, and buyer B is still refused."),
        broken=Excerpt(RECIPES, '"EXISTS", "flag"', '"SET", "flag"'),
        repaired=Excerpt("shop/models.py", "self.Phase.OPEN if self.left"),
        scenarios=("sold-out-for-ever",),
    ),
    Step(
        name="late-payment",
        title=_("The payment arrives too late"),
        notice=_("How many paid orders are there for one unit: two, or one and a refund?"),
        broken=Excerpt(RECIPES, "order.status = Order.Status.PAID", "order.save()"),
        repaired=Excerpt("shop/payments/service.py", "orders.pay_order(", "return False"),
        scenarios=("payment-after-expiry",),
    ),
    Step(
        name="payment-lock",
        title=_("A lock while the customer pays"),
        notice=_("The key ends before the payment. Both buyers pay for one unit."),
        broken=SET_NX_PX,
        repaired=Excerpt("shop/payments/service.py", "last = order.pay_by", "answer_by="),
        scenarios=("lock-while-paying",),
    ),
    Step(
        name="restock",
        title=_("Staff add stock in mid-sale"),
        notice=_("The form showed 2. When it saved 3, only 1 was left."),
        broken=Excerpt(RECIPES, '"SET", "stock", shown'),
        repaired=Excerpt(STOCK, "RESTOCK = ", "WHERE id"),
        scenarios=("restock-overwrites-sales",),
    ),
)


class Part(NamedTuple):
    """A part of the course."""

    name: str
    title: Text
    steps: tuple[Step, ...]


PARTS = (Part("locks", _("Locks"), LOCKS), Part("flash-sale", _("The flash sale"), FLASH_SALE))
COURSE = tuple(step for part in PARTS for step in part.steps)


def step_of(scenario: str) -> Step:
    """Return the step that shows the scenario."""
    return next(step for step in COURSE if scenario in step.scenarios)
