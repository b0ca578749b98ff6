"""The documentation says what the backends declare."""

from pathlib import Path

from locking.declared import BACKENDS, capabilities, markdown

LOCKS_MD = Path(__file__).resolve().parents[2] / "docs" / "locks.md"


def test_the_table_in_the_docs_is_the_declared_one() -> None:
    assert markdown() in LOCKS_MD.read_text(), "run: manage.py lock_table --write docs/locks.md"


def test_every_backend_declares_what_people_choose_by() -> None:
    declared = capabilities()
    assert set(declared) == set(BACKENDS)
    assert all(capability.summary.endswith(".") for capability in declared.values())
    # Whoever excludes other machines must end a dead holder's grant somehow.
    for alias, capability in declared.items():
        if capability.exclusion == "machines":
            assert capability.expires or capability.session_bound, alias
