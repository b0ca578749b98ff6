"""The course: what the field learned about locks and flash sales, a step for each lesson."""

from dataclasses import dataclass
from typing import ClassVar

from loadtest.charts.source import Excerpt
from loadtest.scenarios.texts import Told

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
class Step(Told):
    """A lesson; its texts have ninety words at most."""

    kind: ClassVar[str] = "steps"
    broken: Excerpt
    repaired: Excerpt
    scenarios: tuple[str, ...]
    """The first one provides the picture."""


LOCKS = (
    Step(
        name="race",
        broken=Excerpt("locking/backends/none.py", "def acquire", "return Grant", "return Grant"),
        repaired=REDIS_TAKE,
        scenarios=("no-lock",),
    ),
    Step(
        name="two-processes",
        broken=ONE_PROCESS,
        repaired=REDIS_TAKE,
        scenarios=("lock-of-one-process",),
    ),
    Step(
        name="setnx",
        broken=Excerpt(REDIS_RECIPES, ".setnx(key"),
        repaired=SET_NX_PX,
        scenarios=("setnx-without-expiry",),
    ),
    Step(
        name="expire",
        broken=Excerpt(REDIS_RECIPES, "if not self._client.setnx", "return True", "reach("),
        repaired=SET_NX_PX,
        scenarios=("crash-between-setnx-and-expire",),
    ),
    Step(
        name="lease",
        broken=Excerpt(WORKER, "early or not renew", "renewer.remove", "renewer.remove"),
        repaired=Excerpt("locking/lease/lease.py", "ttl = None", "self.claim.deadline"),
        scenarios=("work-outlasts-lease",),
    ),
    Step(
        name="owner",
        broken=Excerpt(REDIS_RECIPES, "def release", "self._client.delete", "self._client.delete"),
        repaired=Excerpt(f"{REDIS_SCRIPTS}/redis_release.lua", "if holder and holder", "end"),
        scenarios=("delete-successors-lock",),
    ),
    Step(
        name="watchdog",
        broken=Excerpt("loadtest/scenarios/catalogue/holders.py", "LONG_TTL", '"""'),
        repaired=Excerpt("locking/lease/watchdog.py", "elif lease.renew_at", "self._renew, lease"),
        scenarios=("holder-killed",),
    ),
    Step(
        name="fence",
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "is_claimed = ", "raise StaleFence", then=WRITE_CLAIMED),
        scenarios=("holder-paused", "gil-held"),
    ),
    Step(
        name="failover",
        broken=Excerpt(
            "loadtest/scenarios/testbed.py", "def add_lock", "settings.LOCKS", "stores.redis.url"
        ),
        repaired=Excerpt("loadtest/scenarios/testbed.py", "def use_redlock", "self.use("),
        scenarios=("failover-before-replication",),
    ),
    Step(
        name="redlock",
        broken=Excerpt("locking/backends/redlock/backend.py", '"RESTART_DELAY": seconds'),
        repaired=Excerpt(
            "locking/backends/redlock/quorum.py", "if restart_delay", "self.votes_from"
        ),
        scenarios=("redlock-amnesia", "redlock-clock-jump"),
    ),
    Step(
        name="zookeeper",
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
        broken=Excerpt(
            "loadtest/recipes/mysql_row.py", "insert = f", "return Grant", "INSERT {ignore}"
        ),
        repaired=Excerpt("locking/backends/mysql_session.py", "    mint = TOKEN", "owns = "),
        scenarios=("mysql-row-left-by-crash",),
    ),
    Step(
        name="commit",
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
        broken=Excerpt(
            "loadtest/scenarios/catalogue/retries.py", 'key = "1" if', "waited =", "a new form"
        ),
        repaired=Excerpt("shop/purchase/place_order.py", "def _replay(", "return Placed("),
        scenarios=("retry-after-lost-reply",),
    ),
    Step(
        name="shop",
        broken=NAIVE_WRITE,
        repaired=Excerpt(STOCK, "CHANGE = ", "COALESCE(%s, fence_token))"),
        scenarios=("forced-switch", "switch-under-load"),
    ),
)

FLASH_SALE = (
    Step(
        name="late-check",
        broken=Excerpt(RECIPES, "Take a unit, check", "return self.order()", 'return "limit"'),
        repaired=Excerpt(RESERVE, "if ordered +", "'queued', quantity"),
        scenarios=("unit-lost-to-a-check",),
    ),
    Step(
        name="queue",
        broken=Excerpt(RECIPES, "reach(RESERVED)", "reach(POPPED)", "RPUSH"),
        repaired=Excerpt(RESERVE, "'queued', quantity", "XADD"),
        scenarios=("crash-between-redis-and-queue",),
    ),
    Step(
        name="sold-out",
        broken=Excerpt(RECIPES, '"EXISTS", "flag"', '"SET", "flag"'),
        repaired=Excerpt("shop/models.py", "self.Phase.OPEN if self.left"),
        scenarios=("sold-out-for-ever",),
    ),
    Step(
        name="late-payment",
        broken=Excerpt(RECIPES, "order.status = Order.Status.PAID", "order.save()"),
        repaired=Excerpt("shop/payments/service.py", "orders.pay_order(", "return False"),
        scenarios=("payment-after-expiry",),
    ),
    Step(
        name="payment-lock",
        broken=SET_NX_PX,
        repaired=Excerpt("shop/payments/service.py", "last = order.pay_by", "answer_by="),
        scenarios=("lock-while-paying",),
    ),
    Step(
        name="restock",
        broken=Excerpt(RECIPES, '"SET", "stock", shown'),
        repaired=Excerpt(STOCK, "RESTOCK = ", "WHERE id"),
        scenarios=("restock-overwrites-sales",),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Part(Told):
    """A part of the course."""

    kind: ClassVar[str] = "parts"
    steps: tuple[Step, ...]


PARTS = (Part(name="locks", steps=LOCKS), Part(name="flash-sale", steps=FLASH_SALE))
COURSE = tuple(step for part in PARTS for step in part.steps)


def step_of(scenario: str) -> Step:
    """Return the step that shows the scenario."""
    return next(step for step in COURSE if scenario in step.scenarios)
