"""The five levels: the locks, the lines at which buyers stop, and the texts."""

from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.course import COURSE, REDIS_RECIPES, STOCK, Step
from loadtest.scenarios.excerpts import Excerpt
from loadtest.scenarios.scenario import Text
from loadtest.scenarios.testbed import BACKENDS, REDIS

RECIPES = "loadtest.recipes.redis_textbook"
LOCKED = Excerpt("shop/purchase/group_commit.py", "with lock as lease", "with lock as lease")
WITHDRAW = Excerpt(STOCK, "reading = read_stock(", "ids = commit(")
STEPS = {step.name: step for step in COURSE}


def _line(path: str, text: str) -> Excerpt:
    return Excerpt(path, text, text)


STOPS = {
    "acquire": LOCKED,
    "read": WITHDRAW,
    "write": _line(STOCK, "ids = commit("),
    "release": LOCKED,
}
"""The lines at which every buyer stops, before they run; the `with` line runs twice."""
STOP_TEXTS = {
    "acquire": _("is about to ask for the lock"),
    "expire": _("has created the key, and is about to set its expiry"),
    "read": _("is about to read the stock"),
    "early": _("has read the stock, and is about to release the lock"),
    "write": _("has read the stock, and is about to write and commit"),
    "release": _("has committed, and is about to release the lock"),
}
STATUSES = {
    "waits": _("waits for the lock"),
    "paused": _("is paused, and does not notice that time passes"),
    "killed": _("was killed"),
    "bought": _("has bought"),
    "sold_out": _("was refused: sold out"),
    "failed": _("was refused"),
}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A level with or without its guard: the lock, the write strategy and the code shown."""

    guard: Text
    alias: str
    backend: str
    code: tuple[Excerpt, ...]
    strategy: str = "naive"
    stops: dict[str, Excerpt] = field(default_factory=dict)
    """Lines in addition to STOPS, or instead of them."""
    buy: dict[str, Any] = field(default_factory=dict)
    """Options of `ShopCommands.buy`."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One level. It belongs to the course step of the same name."""

    name: str
    goal: Text
    explanation: Text
    """Two sentences for the winner."""
    broken: Variant
    guarded: Variant
    buyers: str = "AB"
    stock: int = 1
    pauses_at: tuple[str, ...] = ()
    """The stops at which A can be paused past its lease."""
    kills: bool = False
    """A can be killed, and the goal is a lock that is never free again."""

    @property
    def step(self) -> Step:
        """Return the course step."""
        return STEPS[self.name]

    def variant(self, is_guarded: bool) -> Variant:
        """Return the variant with or without the guard."""
        return self.guarded if is_guarded else self.broken


def _redis(guard: Text, *code: Excerpt, **options: Any) -> Variant:
    return Variant(guard=guard, alias="redis", backend=REDIS, code=(LOCKED, *code), **options)


def _recipe(alias: str, backend: str, guard: Text, *code: Excerpt, **stops: Excerpt) -> Variant:
    shown = (LOCKED, *code, WITHDRAW)
    return Variant(
        guard=guard, alias=alias, backend=f"{RECIPES}.{backend}", code=shown, stops=stops
    )


LEVELS = {
    level.name: level
    for level in (
        Level(
            name="race",
            goal=_("There is one unit. Sell it twice."),
            explanation=_(
                "Both buyers read the same number before either wrote it back. A lock makes the "
                "second buyer wait until the first one has written."
            ),
            broken=Variant(
                guard=_("no lock"),
                alias="none",
                backend=f"{BACKENDS}.none.NoneBackend",
                code=(LOCKED, STEPS["race"].broken, WITHDRAW),
            ),
            guarded=_redis(_("a lock in Redis"), STEPS["two-processes"].repaired, WITHDRAW),
        ),
        Level(
            name="expire",
            goal=_("Leave a lock that will never be free again."),
            explanation=_(
                "The key was created, and its owner died before it could set the expiry. SET NX PX "
                "does both in one command, so no crash fits between them."
            ),
            broken=_recipe(
                "setnx_expire",
                "SetnxExpireBackend",
                "SETNX, EXPIRE",
                STEPS["expire"].broken,
                expire=_line(REDIS_RECIPES, "reach("),
            ),
            guarded=_recipe("set_px", "SetExpireBackend", "SET NX PX", STEPS["expire"].repaired),
            kills=True,
        ),
        Level(
            name="owner",
            goal=_("There are two units and three buyers. Sell three."),
            explanation=_(
                "A's lease had ended, and its DEL removed B's key, so C was let in beside B. A "
                "release that compares the owner first leaves B's key alone."
            ),
            broken=_recipe(
                "set_px",
                "SetExpireBackend",
                "DEL",
                STEPS["owner"].broken,
                release=_line(REDIS_RECIPES, "self._client.delete(self.prefix + claim.name)"),
            ),
            guarded=_redis(_("compare the owner, then DEL"), WITHDRAW, STEPS["owner"].repaired),
            buyers="ABC",
            stock=2,
            pauses_at=("release",),
        ),
        Level(
            name="fence",
            goal=_("There is one unit. Sell it twice, although the lock works."),
            explanation=_(
                "A was paused past its lease, and wrote without knowing that B had bought. With a "
                "fence the stock row knows B's newer token, and rejects the write of A."
            ),
            broken=_redis(_("a lock in Redis"), WITHDRAW, STEPS["fence"].broken),
            guarded=_redis(
                _("a lock in Redis and a fence"),
                WITHDRAW,
                STEPS["fence"].repaired,
                strategy="fenced",
            ),
            pauses_at=("read", "write"),
        ),
        Level(
            name="commit",
            goal=_("There is one unit. Sell it twice, although every buyer waits for the lock."),
            explanation=_(
                "A released the lock before its commit, so B read a stock that was about to "
                "change. The lock has to go around the transaction."
            ),
            broken=_redis(
                _("released before the commit"),
                WITHDRAW,
                STEPS["commit"].broken,
                stops={"early": _line("loadtest/load/shop_worker.py", "lease.backend.release(")},
                buy={"early": True},
            ),
            guarded=_redis(_("released after the commit"), WITHDRAW),
        ),
    )
}
