"""L3: the textbook's lock in a table, whose row outlives its holder."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from loadtest.scenarios.left_behind import NAME, crash_and_wait
from loadtest.scenarios.scenario import Scenario
from loadtest.scenarios.testbed import DATABASE, TTL, Stage
from locking.handler import create

RECIPE = "loadtest.recipes.mysql_row.MySQLRowRecipe"


def play(stage: Stage, is_repaired: bool) -> dict[str, Any]:
    """On a MariaDB: a row that nobody deletes; then a row that ends."""
    server = stage.crew.mariadb
    alias = stage.database(server)
    if is_repaired:
        stage.lock("database", DATABASE, alias)
        return crash_and_wait(stage, "database", ttl=TTL, patience=4 * TTL)
    stage.lock("mysql_row", RECIPE, alias)
    facts = crash_and_wait(stage, "mysql_row", ttl=TTL)
    table = create("mysql_row", {"BACKEND": RECIPE, "LOCATION": alias})
    facts["rows"] = sum(held.name == NAME for held in table.inspect())
    table.break_lock(NAME)
    table.close()
    return facts


SCENARIO = Scenario(
    name="mysql-row-left-by-crash",
    row="L3",
    title=_("A row that a crash leaves behind"),
    broken="INSERT, DELETE in MySQL",
    repaired="database",
    sentences=(
        _(
            "Buyer A inserted the row and was killed: %(b_rows)d row stayed in the table, "
            "without an end."
        ),
        _(
            "Buyer B, who would have waited, was refused after %(b_waited).2f s: the recipe cannot "
            "wait, and a row that nobody deletes never goes."
        ),
        _(
            "In the full table lock the row of the dead holder ended with its lease of "
            "%(r_ttl).0f s, and B got in after %(r_waited).1f s."
        ),
    ),
    repair=_("An expiry in the row, waiters that are told, and a sweep of the dead rows."),
    immune=_("Every backend of the shop; this is a recipe of the textbooks, kept for the lab."),
    play=play,
    is_overlap=False,
)
