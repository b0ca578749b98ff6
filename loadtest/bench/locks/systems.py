"""What is measured: one opener for each lock, in ten lines or so.

An opener is called in the process (and thread) that will use the lock, and connects it to the
private stores of the settings.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

Role = Literal["floor", "ours", "peer"]
Family = Literal["redis", "redlock", "zookeeper", "mysql"]


@dataclass(frozen=True, slots=True)
class Handle:
    """A lock on one name: `acquire` waits so many seconds and says whether it was taken."""

    acquire: Callable[[float], object]
    release: Callable[[], object]


Opener = Callable[[str, float], Handle]
"""From the name of the lock and its ttl in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One lock of one library. A floor is the bare commands, and does not wait."""

    name: str
    family: Family
    role: Role
    open: Opener
    waits: bool = True
    session: float | None = None
    """Seconds after which its service drops a holder that died; None where a ttl does."""
    needs: str = "django"

    @property
    def is_installed(self) -> bool:
        """Whether its library is there."""
        return find_spec(self.needs) is not None


SYSTEMS: list[System] = []


def system(
    name: str,
    family: Family,
    role: Role,
    *,
    waits: bool = True,
    session: float | None = None,
    needs: str = "django",
) -> Callable[[Opener], Opener]:
    """Decorates an opener: measure it."""

    def register(opener: Opener) -> Opener:
        SYSTEMS.append(
            System(
                name=name,
                family=family,
                role=role,
                open=opener,
                waits=waits,
                session=session,
                needs=needs,
            )
        )
        return opener

    return register
