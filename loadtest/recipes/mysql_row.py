"""The textbook lock in a table: INSERT a row with a unique name, DELETE it. For the lab only.

It has three flaws: a caller cannot wait (the INSERT fails at once), the holder cannot enter again,
and a holder that crashes keeps the lock forever, because rows do not expire.
`locking.backends.database` has none of them.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

from locking.backends.clock_tokens import clock_token
from locking.backends.database.base import DatabaseLocks
from locking.claims import Capabilities, Claim, Grant, Held

CREATE = (
    "CREATE TABLE IF NOT EXISTS recipe_lock "
    "(resource_name VARCHAR(200) NOT NULL UNIQUE, owner VARCHAR(150) NOT NULL)"
)
DELETE = "DELETE FROM recipe_lock WHERE resource_name = %(name)s"


class MySQLRowRecipe(DatabaseLocks):
    """L3. LOCATION is an alias in DATABASES."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        summary="L3, a recipe with known flaws: no waiting, not reentrant, never expires.",
        exclusion="machines",
        reentrant=False,
    )

    def __init__(self, alias: str, **settings: Any) -> None:
        super().__init__(alias, **settings)
        self._created = False

    def _change(self, sql: str, **values: str) -> int:
        if not self._created:
            self.pool.call(lambda session: session.change(CREATE))
            self._created = True
        return self.pool.call(lambda session: session.change(sql, **values))

    def acquire(self, claim: Claim, timeout: float) -> Grant | None:
        """Try once and ignore `timeout`."""
        ignore = "OR IGNORE" if self.pool.vendor == "sqlite" else "IGNORE"
        insert = f"INSERT {ignore} INTO recipe_lock VALUES (%(name)s, %(owner)s)"  # noqa: S608
        if not self._change(insert, name=claim.name, owner=claim.owner):
            return None
        return Grant(clock_token(), math.inf)

    def release(self, claim: Claim, token: int) -> None:
        """Delete the row."""
        if not self.break_lock(claim.name):
            raise claim.lost()

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Return infinity: rows do not expire."""
        return math.inf

    def inspect(self) -> list[Held]:
        """Return no rows: nothing tells those of crashed holders apart."""
        return []

    def probe(self) -> None:
        """Write to the table."""
        self._change(DELETE, name="")

    def break_lock(self, name: str) -> bool:
        """Delete the row, as an operator does after the holder crashed."""
        return bool(self._change(DELETE, name=name))
