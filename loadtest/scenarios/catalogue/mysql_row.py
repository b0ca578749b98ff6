"""L3: the textbook lock in a MySQL table, whose row outlives its holder."""

from typing import Any

from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest.scenarios.scenario import IMMUNE_TO_RECIPE, Scenario
from loadtest.scenarios.steps import LOCK, crash_and_wait
from loadtest.scenarios.testbed import DATABASE, TTL, Testbed
from locking.handler import create

RECIPE = "loadtest.recipes.mysql_row.MySQLRowRecipe"


def _row_left(testbed: Testbed, is_repaired: bool) -> dict[str, Any]:
    """Kill the owner of a row that never expires; then of a row that expires."""
    alias = testbed.add_database(testbed.shared.mariadb)
    if is_repaired:
        testbed.add_lock("database", DATABASE, alias)
        return crash_and_wait(testbed, "database", ttl=TTL, timeout=4 * TTL)
    testbed.add_lock("mysql_row", RECIPE, alias)
    facts = crash_and_wait(testbed, "mysql_row", ttl=TTL)
    table = create("mysql_row", {"BACKEND": RECIPE, "LOCATION": alias})
    facts["rows"] = sum(held.name == LOCK for held in table.inspect())
    table.break_lock(LOCK)
    table.close()
    return facts


ROW_LEFT = Scenario(
    name="mysql-row-left-by-crash",
    fault="killed",
    row="L3",
    title=_("A row that a crash leaves behind"),
    broken=gettext_noop("INSERT, DELETE in MySQL"),
    repaired="database",
    sentences=(
        _(
            "Buyer A inserted the row and was killed: %(b_rows)d row without an expiry stayed in "
            "the table."
        ),
        _(
            "Buyer B was refused after %(b_waited).2f s: the recipe cannot wait, and the row stays "
            "until an operator deletes it."
        ),
        _(
            "With the database backend, the dead holder's row expired with its lease of "
            "%(r_ttl).0f s, and B got the lock after %(r_waited).1f s."
        ),
    ),
    repair=_("An expiry in the row, a signal to waiters, and a job that deletes expired rows."),
    immune=IMMUNE_TO_RECIPE,
    run=_row_left,
    needs="MariaDB",
    requires_overlap=False,
)
