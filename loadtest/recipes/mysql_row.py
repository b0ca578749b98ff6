"""The textbook lock in a table (L3): INSERT a row with a unique name, DELETE it. For the lab only.

Its three flaws: nobody can wait (the INSERT fails at once, and the caller is turned away), the
holder itself is refused when it asks again, and a holder that crashes keeps the lock for ever,
since no row ever ends. `locking.backends.database.backend` has none of them.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token
from locking.backends.database.connections import Pool

CREATE = (
    "CREATE TABLE IF NOT EXISTS recipe_lock "
    "(resource_name VARCHAR(200) NOT NULL UNIQUE, owner VARCHAR(150) NOT NULL)"
)


class MySQLRowRecipe(Backend):
    """L3. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary="L3, a recipe with known flaws: no waiting, not reentrant, never expires.",
        exclusion="machines",
        reentrant=False,
        lists_holders=True,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self.pool = Pool(str(self.location))
        self._created = False

    def _change(self, sql: str, *args: str) -> int:
        if not self._created:
            self.pool.call(lambda session: session.change(CREATE))
            self._created = True
        return self.pool.call(lambda session: session.change(sql, *args))

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Try once, whatever `timeout` says."""
        ignore = "OR IGNORE" if self.pool.vendor == "sqlite" else "IGNORE"
        insert = f"INSERT {ignore} INTO recipe_lock VALUES (%s, %s)"  # noqa: S608 - two constants
        if not self._change(insert, claim.name, claim.owner):
            return None
        return Grant(clock_token(), math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """Delete the row."""
        if not self.break_lock(claim.name):
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """A row ends when it is deleted."""
        return math.inf

    def inspect(self) -> list[Held]:
        """All rows, those of the dead among them."""
        self.probe()
        rows = self.pool.call(
            lambda session: session.rows("SELECT resource_name, owner FROM recipe_lock")
        )
        return [Held(name=name, owner=owner) for name, owner in rows]

    def probe(self) -> None:
        """Look at the table."""
        self._change("DELETE FROM recipe_lock WHERE resource_name = %s", "")

    def break_lock(self, name: str) -> bool:
        """What an operator does when the holder has died: delete the row by hand."""
        return bool(self._change("DELETE FROM recipe_lock WHERE resource_name = %s", name))

    def close(self) -> None:
        """Close the connections; the rows stay."""
        self.pool.close()

    def reset_after_fork(self) -> None:
        """In a forked child."""
        super().reset_after_fork()
        self.pool.reset_after_fork()
