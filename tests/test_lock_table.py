"""docs/reference/locks.md shows the properties that the backends declare."""

from loadtest.charts import marked
from tools.lock_table import PAGE, PART, capabilities, markdown


def test_table_in_docs_matches_declared_capabilities() -> None:
    before, after = marked.around(PAGE, PART)
    assert PAGE.read_text() == before + markdown() + after, "run: tools/lock_table.py"


def test_every_backend_that_excludes_machines_frees_dead_holders() -> None:
    for alias, declared in capabilities().items():
        assert declared.summary.endswith(".")
        if declared.exclusion == "machines":
            assert declared.expires or declared.session_bound, alias
