"""Modes of a lock policy, as a project declares them."""

from locking.conf import Mode

PATH = "tests.locking.modes.Writes"


class Writes(Mode):
    """Two modes, one of which relies on the lock alone."""

    CHECKED = "checked", "checked by the database"
    UNCHECKED = "unchecked", "not checked"

    @classmethod
    def title(cls) -> str:
        return "Kind of write"

    @property
    def warning(self) -> str:
        return "Unchecked writes rely on the lock." if self == Writes.UNCHECKED else ""
