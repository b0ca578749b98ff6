"""What others may import from `locking`, and that nothing is imported before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import locking

NAMES = [
    "Attempt",
    "IdempotencyError",
    "KeyInFlight",
    "KeyReused",
    "KeyUnusable",
    "Lease",
    "Lock",
    "LockError",
    "LockLost",
    "LockMisuse",
    "LockTimeout",
    "LockUnavailable",
    "StoredResponse",
    "current_run",
    "idempotent",
    "lock",
    "locks",
    "run_once",
    "single_flight",
]


def test_the_public_names_are_these() -> None:
    assert locking.__all__ == sorted(NAMES)
    assert set(locking._HOMES) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_there_and_says_what_it_is(name) -> None:
    found = getattr(locking, name)
    assert found.__doc__


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unlock'"):
        _ = locking.unlock


def test_one_except_clause_catches_every_error() -> None:
    errors = [name for name in NAMES if name.startswith("Lock") and name not in ("Lock",)]
    for name in errors:
        error = getattr(locking, name)
        assert issubclass(error, locking.LockError)
        assert str(error()) == error.__doc__
        assert str(error("why")) == "why"
    assert issubclass(locking.LockMisuse, ValueError)


def test_the_package_asks_for_no_settings_and_no_client_before_it_is_used() -> None:
    """Django reads it while the settings are still being made."""
    code = (
        "import sys, locking; "
        "bad = {'django', 'redis', 'kazoo', 'MySQLdb', 'shop', 'inventory'} & set(sys.modules); "
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
