"""The programs: what each client does, which faults may happen, and what no run may violate."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

LEASE, CRASH = "lease ends", "A crashes"
NOT_LINEARIZABLE, NEVER_FREE, STUCK = "not linearizable", "the lock stays held", "deadlock"
OVERSOLD, LEDGER = "oversold", "stock and ledger differ"


@dataclass(frozen=True)
class Program:
    """A program of two or three clients.

    A client's words: `try` and `wait` acquire the lock, without and with waiting; `renew` and
    `release`; `read` and `write` the stock row of a sale, to buy one unit.
    """

    store: str
    """A name that `worlds.Stores` knows."""
    script: str
    """The words of each client: "A, B: try release; C: wait release"."""
    faults: tuple[str, ...] = ()
    """`lease ends`, on redlock `lease ends on 2`; `A crashes`, whose own lease ends then or later;
    `A gives up`; `A loses a reply`."""
    breaks: str = ""
    """The rule that some run violates, if the program has a flaw."""
    strategy: str = "naive"
    stock: int = 1
    ends_at: str = ""
    """The lease ends only while its holder is at this word; empty: at any time."""

    @cached_property
    def clients(self) -> dict[str, str]:
        """The words of each client."""
        parts = [part.split(": ") for part in self.script.split("; ")]
        return {name: words for names, words in parts for name in names.split(", ")}


_LOCK, _LOCK_3 = "A, B: wait renew release", "A, B, C: wait renew release"
_TRY, _AGAIN = "A, B: try release", "A, B: try renew release try release"
_BUY, _BUY_3 = "A, B: wait read write release", "A, B, C: wait read write release"
_TWO_UNITS: dict[str, Any] = {"stock": 2, "ends_at": "release"}

PROGRAMS = {
    "redis/wait": Program("redis", _LOCK_3),
    "redis/lease": Program("redis", _LOCK_3, (LEASE,)),
    "redis/give-up": Program("redis", _LOCK_3, ("B gives up", LEASE)),
    "redis/crash": Program("redis", _LOCK_3, (CRASH, LEASE)),
    "redis/lost-reply": Program("redis", _LOCK_3, ("A loses a reply",)),
    "redis/try": Program("redis", _AGAIN, (LEASE, LEASE)),
    "redlock/try": Program("redlock", _TRY),
    "redlock/three": Program("redlock", "A, B, C: try release"),
    "redlock/renew": Program("redlock", "A, B: try renew release"),
    "redlock/again": Program("redlock", "A, B: try release try release"),
    "redlock/clock-jump": Program("redlock", _TRY, ("lease ends on 1",), NOT_LINEARIZABLE),
    "database/wait": Program("database", _LOCK, (LEASE, CRASH)),
    "database/exclusive": Program("database", "A, B: try renew renew release"),
    "database/give-up": Program("database", "A: try renew renew release; B: wait release"),
    "database/try": Program("database", _AGAIN, (LEASE,)),
    "game/race-broken": Program("none", _BUY, breaks=OVERSOLD),
    "game/race": Program("redis", _BUY),
    "game/expire-broken": Program("setnx_expire", _BUY, (CRASH,), STUCK),
    "game/expire": Program("set_px", _BUY, (CRASH,)),
    "game/owner-broken": Program("set_px", _BUY_3, (LEASE,), OVERSOLD, **_TWO_UNITS),
    "game/owner": Program("redis", _BUY_3, (LEASE,), **_TWO_UNITS),
    "game/fence-broken": Program("redis", _BUY, (LEASE,), OVERSOLD),
    "game/fence": Program("redis", _BUY, (LEASE,), strategy="fenced"),
    "game/conditional": Program("none", _BUY, strategy="conditional"),
    "game/commit-broken": Program("redis", "A, B: wait read release write", breaks=OVERSOLD),
    "game/commit": Program("redis", _BUY),
    "recipes/setnx": Program("setnx", "A, B: wait release", (CRASH,), STUCK),
    "recipes/setnx-expire": Program("setnx_expire", "A, B: wait release", (CRASH,), STUCK),
    "recipes/set-px": Program("set_px", _LOCK, (LEASE,), NOT_LINEARIZABLE),
    "recipes/mysql-row": Program("mysql_row", _TRY, (CRASH,), NEVER_FREE),
}
"""By part and name. The parts are backends, the levels of the game, and the textbook's locks."""
PARTS = tuple(dict.fromkeys(name.partition("/")[0] for name in PROGRAMS))
