"""The active lock backend and mode, and the switch to others while locks are in use.

A process acts on a policy that it read at most `MAX_AGE` ago. A switch therefore has two parts, in
the state DRAINING:

1. It is announced. Once a process has seen that for `MAX_AGE` on its own clock, none grants under
   the old backend any more (a later grant is released, see `policy.lock`). Nothing is granted.
2. It is handed over, name by name. One UPDATE increases the epoch and records the names that are
   still held in the old backend. These wait; every other name is granted by the new backend.
   Holders of the old backend only become fewer, so a name leaves the record once and for all.

When no name is left, the new backend is active. The epoch is the first part of every fence, so a
holder of the old backend cannot write after a holder of the new one, not even after a forced
switch.
"""

from locking.policy.active import MAX_AGE, Policy, current, invalidate, stored_policy
from locking.policy.switching import (
    cancel_switch,
    finish_in_background,
    finish_overdue_switch,
    finish_switch,
    raise_epoch,
    switch,
)

__all__ = [
    "MAX_AGE",
    "Policy",
    "cancel_switch",
    "current",
    "finish_in_background",
    "finish_overdue_switch",
    "finish_switch",
    "invalidate",
    "raise_epoch",
    "stored_policy",
    "switch",
]
