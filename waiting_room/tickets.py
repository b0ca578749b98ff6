"""Tickets, the public names of customers in a room, and the lottery: pure functions.

A visitor can repeat `root_of` and `shuffle` from the public record of a room.
"""

import hashlib
import hmac
from collections.abc import Iterable

TICKET_LENGTH = 16


def ticket_of(*, key: str, customer_id: int) -> str:
    """Return the ticket of a customer; only the room's secret key links the two."""
    return hmac.digest(key.encode(), b"%d" % customer_id, "sha256").hex()[:TICKET_LENGTH]


def root_of(tickets: Iterable[str]) -> str:
    """Return the digest of a list of tickets, in any order."""
    return hashlib.sha256("\n".join(sorted(tickets)).encode()).hexdigest()


def shuffle(tickets: Iterable[str], *, seed: str, root: str) -> list[str]:
    """Return the tickets in the order that the seed and the list itself decide."""
    prefix = hashlib.sha256((seed + root).encode())

    def rank(ticket: str) -> bytes:
        digest = prefix.copy()
        digest.update(ticket.encode())
        return digest.digest()

    return sorted(tickets, key=rank)
