"""The switch to another lock backend: `locking.policy` with its epoch and the drain of a name.

Two processes buy the last unit under one name. Each acts on a policy that it read less than MAX_AGE
ago: in the same tick of the clock. A third process, the switcher, announces and hands over.
"""

from typing import Any, NamedTuple

from verification.protocols.search import Moves, Protocol, changed

FREE = -1
NOT_YET, NOW, EARLIER = range(3)
"""When something happened, in ticks of the clock."""


class Policy(NamedTuple):
    """The policy: old, announced, waiting (for the holder of the name) or new."""

    phase: str = "old"
    epoch: int = 0


class Process(NamedTuple):
    """A process: idle, asking, granted, holding, claimed, read or done; its policy and reading."""

    at: str = "idle"
    policy: Policy = Policy("announced")
    is_young: bool = False
    """The policy was read in this tick."""
    token: int = 0
    read: int = 0


class State(NamedTuple):
    """The processes, the policy row, the two backends, the stock row and the clock."""

    processes: tuple[Process, ...] = (Process(), Process())
    policy: Policy = Policy()
    begun: int = NOT_YET
    seen: int = NOT_YET
    faults: int = 1
    holders: tuple[int, int] = (FREE, FREE)
    counts: tuple[int, int] = (0, 0)
    fence: tuple[int, int] = (0, 0)
    quantity: int = 1
    orders: int = 0


def _moves(rules: Any, s: State) -> Moves:
    old = tuple(one._replace(is_young=False) for one in s.processes)
    begun, seen = (EARLIER if when else NOT_YET for when in (s.begun, s.seen))
    yield "Tick", 0, s._replace(processes=old, begun=begun, seen=seen)
    phase, epoch = s.policy
    if phase == "old" and rules.is_forced:
        yield "Force", 0, s._replace(policy=Policy("new", epoch + 1))
    elif phase == "old" and not s.begun:
        yield "Begin", 0, s._replace(begun=NOW)
    elif phase == "old":
        yield "Announce", 0, s._replace(policy=Policy("announced"))
    elif phase == "announced" and not s.seen:
        yield "See", 0, s._replace(seen=NOW)
    elif phase == "announced" and s.faults:
        yield "Replace", 0, s._replace(seen=NOT_YET, faults=0)
    if phase == "announced" and (s.seen if rules.sees_first else s.begun) == EARLIER:
        is_held = rules.drains_names and s.holders[0] != FREE
        yield "HandOver", 0, s._replace(policy=Policy("waiting" if is_held else "new", epoch + 1))
    elif phase == "waiting" and s.holders[0] == FREE:
        yield "HandOverName", 0, s._replace(policy=Policy("new", epoch))
    for i, process in enumerate(s.processes):
        yield from _acquire(rules, s, i, process)
        yield from _buy(rules, s, i, process)


def _acquire(rules: Any, s: State, i: int, process: Process) -> Moves:
    backend = int(process.policy.phase == "new")
    if process.at == "idle" and not process.is_young:
        yield "ReadPolicy", i, changed(s, i, policy=s.policy, is_young=True)
    elif process.at == "idle" and process.policy.phase in ("old", "new"):
        yield "Ask", i, changed(s, i, at="asking")
    elif process.at == "asking" and s.holders[backend] == FREE:
        token = s.counts[backend] + 1
        now = _hold(s, backend, i)._replace(counts=_put(s.counts, backend, token))
        yield "Grant", i, changed(now, i, at="granted", token=token)
    elif process.at == "granted":
        if process.policy == s.policy or process.is_young or not rules.reads_again:
            yield "Keep", i, changed(s, i, at="holding")
        else:
            yield "GiveBack", i, changed(_hold(s, backend, FREE), i, at="idle", policy=s.policy)


def _buy(rules: Any, s: State, i: int, process: Process) -> Moves:
    fence = (process.policy.epoch if rules.has_epoch else 0, process.token)
    done = changed(_hold(s, int(process.policy.phase == "new"), FREE), i, at="done")
    is_fenced = rules.strategy == "fenced"
    if process.at == "holding" and is_fenced and fence >= s.fence:
        yield "Claim", i, changed(s._replace(fence=fence), i, at="claimed")
    elif is_fenced and (process.at == "holding" or (process.at == "read" and s.fence != fence)):
        yield "Refuse", i, done
    elif process.at in ("holding", "claimed") and s.quantity:
        yield "Read", i, changed(s, i, at="read", read=s.quantity)
    elif process.at in ("holding", "claimed"):
        yield "SoldOut", i, done
    elif process.at == "read":
        yield "Write", i, done._replace(quantity=process.read - 1, orders=s.orders + 1)


def _hold(s: State, backend: int, holder: int) -> State:
    return s._replace(holders=_put(s.holders, backend, holder))


def _put(pair: tuple[int, int], backend: int, value: int) -> tuple[int, int]:
    return (pair[0], value) if backend else (value, pair[1])


PROMISES = {
    "never oversold": lambda r, s: s.orders <= 1,
    "stock conserved": lambda r, s: s.quantity + s.orders == 1,
    "one holder": lambda r, s: (
        r.is_forced or sum(one.at in ("holding", "claimed", "read") for one in s.processes) <= 1
    ),
}
PROTOCOL = Protocol("switch", lambda rules: State(), _moves, PROMISES)
