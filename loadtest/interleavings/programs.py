"""The programs: what each client does, which faults may happen, and what no run may violate."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program of two or three clients.

    A client's words: `try` and `wait` acquire the lock, without and with waiting; `renew` and
    `release`; `read` and `write` the stock row of a sale, to buy one unit.
    """

    store: str
    """A key of `stores.STORES`."""
    clients: dict[str, str]
    faults: tuple[str, ...] = ()
    """`lease ends`, on redlock `lease ends on 2`; `A crashes`, whose own lease ends then or later;
    `A gives up`; `A loses a reply`."""
    ends_at: str = ""
    """The lease ends only while its holder is at this word; empty: at any time."""
    strategy: str = "naive"
    stock: int = 1
    breaks: str = ""
    """The rule that some run violates, if the program has a flaw."""


def _all(words: str, names: str = "AB") -> dict[str, str]:
    return dict.fromkeys(names, words)


LEASE, CRASH = "lease ends", "A crashes"
NOT_LINEARIZABLE, NEVER_FREE, STUCK = "not linearizable", "the lock stays held", "deadlock"
OVERSOLD, LEDGER = "oversold", "stock and ledger differ"
LOST = "an accepted reservation has no order"

_LOCK, _AGAIN, _BUY = (
    "wait renew release",
    "try renew release try release",
    "wait read write release",
)
_REDIS: dict[str, Any] = {"store": "redis", "clients": _all(_LOCK, "ABC")}
_BUYS: dict[str, Any] = {"store": "redis", "clients": _all(_BUY)}
_THREE_BUY: dict[str, Any] = {"clients": _all(_BUY, "ABC"), "stock": 2, "ends_at": "release"}

PROGRAMS = {
    "redis/wait": Program(**_REDIS),
    "redis/lease": Program(**_REDIS, faults=(LEASE,)),
    "redis/give-up": Program(**_REDIS, faults=("B gives up", LEASE)),
    "redis/crash": Program(**_REDIS, faults=(CRASH, LEASE)),
    "redis/lost-reply": Program(**_REDIS, faults=("A loses a reply",)),
    "redis/try": Program(store="redis", clients=_all(_AGAIN), faults=(LEASE, LEASE)),
    "redlock/try": Program(store="redlock", clients=_all("try release")),
    "redlock/three": Program(store="redlock", clients=_all("try release", "ABC")),
    "redlock/renew": Program(store="redlock", clients=_all("try renew release")),
    "redlock/again": Program(store="redlock", clients=_all("try release try release")),
    "redlock/clock-jump": Program(
        store="redlock",
        clients=_all("try release"),
        faults=("lease ends on 1",),
        breaks=NOT_LINEARIZABLE,
    ),
    "database/wait": Program(store="database", clients=_all(_LOCK), faults=(LEASE, CRASH)),
    "database/exclusive": Program(store="database", clients=_all("try renew renew release")),
    "database/give-up": Program(
        store="database", clients={"A": "try renew renew release", "B": "wait release"}
    ),
    "database/try": Program(store="database", clients=_all(_AGAIN), faults=(LEASE,)),
    "reservations/two-writers": Program(
        store="queue", clients=_all("reserve write"), strategy="conditional"
    ),
    "reservations/three": Program(
        store="queue",
        clients={"A": "reserve", "B": "reserve write", "C": "write"},
        strategy="conditional",
        stock=2,
    ),
    "reservations/three-lease": Program(
        store="queue",
        clients={"A": "reserve", "B": "reserve write", "C": "write"},
        faults=(LEASE,),
        strategy="fenced",
        stock=2,
    ),
    "reservations/lease": Program(
        store="queue", clients=_all("reserve write"), faults=(LEASE,), strategy="fenced", stock=2
    ),
    "reservations/crash": Program(
        store="queue",
        clients=_all("reserve write"),
        faults=(CRASH,),
        strategy="conditional",
        stock=2,
    ),
    "game/race-broken": Program(store="none", clients=_all(_BUY), breaks=OVERSOLD),
    "game/race": Program(**_BUYS),
    "game/expire-broken": Program(
        store="setnx_expire",
        clients=_all(_BUY),
        faults=(CRASH,),
        breaks=STUCK,
    ),
    "game/expire": Program(store="set_px", clients=_all(_BUY), faults=(CRASH,)),
    "game/owner-broken": Program(store="set_px", **_THREE_BUY, faults=(LEASE,), breaks=OVERSOLD),
    "game/owner": Program(store="redis", **_THREE_BUY, faults=(LEASE,)),
    "game/fence-broken": Program(**_BUYS, faults=(LEASE,), breaks=OVERSOLD),
    "game/fence": Program(**_BUYS, faults=(LEASE,), strategy="fenced"),
    "game/commit-broken": Program(
        store="redis", clients=_all("wait read release write"), breaks=OVERSOLD
    ),
    "game/commit": Program(**_BUYS),
    "recipes/setnx": Program(
        store="setnx", clients=_all("wait release"), faults=(CRASH,), breaks=STUCK
    ),
    "recipes/setnx-expire": Program(
        store="setnx_expire", clients=_all("wait release"), faults=(CRASH,), breaks=STUCK
    ),
    "recipes/set-px": Program(
        store="set_px", clients=_all(_LOCK), faults=(LEASE,), breaks=NOT_LINEARIZABLE
    ),
    "recipes/mysql-row": Program(
        store="mysql_row", clients=_all("try release"), faults=(CRASH,), breaks=NEVER_FREE
    ),
}
"""By part and name. The parts are backends, the levels of the game, and the textbook's locks."""
PARTS = tuple(dict.fromkeys(name.partition("/")[0] for name in PROGRAMS))
