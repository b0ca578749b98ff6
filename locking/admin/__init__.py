"""Admin pages: the lock policy with its switch and history, held locks, responses, job runs."""

from locking.admin import held_locks  # noqa: F401 - it registers its page
from locking.admin.base import LargeTable, ReadOnlyAdmin, confirm
from locking.admin.policy import SwitchForm

__all__ = ["LargeTable", "ReadOnlyAdmin", "SwitchForm", "confirm"]
