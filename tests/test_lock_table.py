"""docs/reference/locks.md agrees with the properties that the backends declare."""

import re

from tools.library_reference import LOCKS, capabilities


def test_summary_agrees_with_the_tested_behaviour() -> None:
    """docs/reference/locks.md lists what the fault tests prove, by hand and in more words."""
    rows = re.findall(r"^\| (.*) \|$", LOCKS.read_text().partition("## Behaviour")[2], re.M)
    cells = {row.split(" | ")[0]: row.split(" | ")[1:] for row in rows}
    aliases = [alias.strip() for alias in cells["failure"]]
    for alias, declared in capabilities().items():
        if alias in aliases:
            column = aliases.index(alias)
            killed = cells["holder killed: next grant"][column]
            assert (killed == "after the lease") == (not declared.session_bound)
            jump = cells["clock of the store jumps"][column]
            assert jump.startswith("two holders") == declared.expires
            failover = cells["failover to an older replica"][column]
            assert (failover == "not affected") == declared.survives_minority
            is_kept = failover == "not affected" and declared.fencing
            assert ("tokens grow" in failover or is_kept) == declared.tokens_outlive_failover


def test_every_backend_that_excludes_machines_frees_dead_holders() -> None:
    for alias, declared in capabilities().items():
        assert declared.summary.endswith(".")
        if declared.exclusion == "machines":
            assert declared.expires or declared.session_bound, alias
