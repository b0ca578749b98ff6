"""RedLock on three masters, of which two grant: `locking.backends.redlock`, with RESTART_DELAY.

A pause past the lease is left to the model of purchases: no lock with a lease survives it.
"""

from typing import Any, NamedTuple

from verification.protocols.search import NAMES, Moves, Protocol, changed

FREE = "-"
MAJORITY = 2


class Client(NamedTuple):
    """A client: idle, asking or holding; the masters whose votes it received."""

    at: str = "idle"
    votes: frozenset[int] = frozenset()


class State(NamedTuple):
    """The clients, whom each master voted for, and for whose leases each master waits."""

    clients: tuple[Client, ...]
    masters: str = FREE * 3
    delays: tuple[frozenset[int], ...] = (frozenset(),) * 3
    faults: int = 3


def _moves(rules: Any, s: State) -> Moves:
    for i, client in enumerate(s.clients):
        yield from _client(s, i, client)
    known = {i for i, client in enumerate(s.clients) if client.at != "idle" and rules.delays}
    for m in range(3 if s.faults else 0):
        now = _vote(s, m, FREE)._replace(faults=s.faults - 1)
        if rules.fault == "Restart":
            now = now._replace(delays=(*s.delays[:m], s.delays[m] | known, *s.delays[m + 1 :]))
        yield rules.fault, 0, now


def _client(s: State, i: int, client: Client) -> Moves:
    if client.at == "idle":
        yield "Ask", i, changed(s, i, at="asking")
        return
    if client.at == "asking":
        for m in range(3):
            if s.masters[m] == FREE and not s.delays[m]:
                voted = _vote(s, m, NAMES[i])
                yield "Vote", i, changed(voted, i, votes=client.votes | {m})
                if s.faults:
                    yield "LoseVote", i, voted._replace(faults=s.faults - 1)
        if len(client.votes) >= MAJORITY:
            yield "Acquire", i, changed(s, i, at="holding")
    # The votes end with the claim. A master that forgot one does not wait for it any more.
    ended = s._replace(
        masters=s.masters.replace(NAMES[i], FREE),
        delays=tuple(delayed - {i} for delayed in s.delays),
    )
    yield "Withdraw", i, changed(ended, i, at="idle", votes=frozenset())
    if client.at == "holding":
        yield "Expire", i, changed(ended, i, at="idle", votes=frozenset())


def _vote(s: State, master: int, name: str) -> State:
    return s._replace(masters=s.masters[:master] + name + s.masters[master + 1 :])


PROMISES = {"one holder": lambda r, s: sum(one.at == "holding" for one in s.clients) <= 1}
PROTOCOL = Protocol("redlock", lambda rules: State((Client(),) * rules.clients), _moves, PROMISES)
