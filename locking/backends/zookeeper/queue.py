"""The nodes of a ZooKeeper queue: who holds the lock, and which nodes a waiter watches.

A node is named after its claim's owner, for a shared lock also after its `slots`, and ends with its
number. A writer waits for all nodes before its own, a reader for the writers among them, and a
claim on a semaphore until fewer than `slots` are left.

Any holder of a semaphore may release first, so the first waiter watches all of them. Each other
waiter watches the one before it, which marks its node when it is granted: one release wakes two
waiters, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable

from locking.claims import READER, WRITER, Claim, other_slots

GRANTED = b"granted"
"""The mark of a granted node with a waiter behind it."""


def label(claim: Claim) -> str:
    """Return the name of the claim's node without its number."""
    return claim.owner if claim.slots is None else f"{claim.owner}~{claim.slots}"


def owner_of(node: str) -> str:
    """Return the owner that a node is named after."""
    return node[:-11].partition("~")[0]


def slots_of(node: str) -> int | None:
    """Return the slots of the node's claim."""
    slots = node[:-11].partition("~")[2]
    return int(slots) if slots else None


def in_order(nodes: Iterable[str]) -> list[str]:
    """Return nodes in the order in which they were created."""
    return sorted(nodes, key=lambda node: node[-10:])


def watched(slots: int | None, ahead: list[str]) -> list[str]:
    """Return the nodes of those `ahead` to watch; none if the claim behind them is granted."""
    if slots is None or slots == WRITER:
        return ahead[-1:]  # the node before its own, so that a release wakes one
    if slots == READER:
        return [node for node in ahead if slots_of(node) == WRITER][-1:]
    if len(ahead) < slots:
        return []
    return ahead if len(ahead) == slots else ahead[-1:]


def awaits_mark(slots: int | None, ahead: list[str]) -> bool:
    """Return whether the watched node is that of a waiter for a semaphore."""
    return slots is not None and 0 < slots < len(ahead)


def holders(queue: list[str]) -> list[str]:
    """Return the granted nodes of a queue that is in order."""
    return [node for place, node in enumerate(queue) if not watched(slots_of(node), queue[:place])]


def check_slots(claim: Claim, nodes: list[str]) -> None:
    """Raise LockMisuse if another claim on the semaphore has another number of slots."""
    for node in nodes:
        slots = slots_of(node)
        if claim.slots and claim.slots > 0 and slots and slots != claim.slots:
            raise other_slots(claim, slots)
