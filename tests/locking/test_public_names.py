"""The public names of `locking`, and the imports that they do not cause."""

import subprocess
import sys
from copy import copy

import pytest

import locking

ERRORS = ["LockError", "LockLost", "LockMisuse", "LockTimeout", "LockUnavailable"]


def test_public_names_are_complete_and_documented() -> None:
    names = ["Fenced", "Lease", "Lock", "lock", "locked", "locks"]
    assert sorted(locking.__all__) == sorted([*ERRORS, *names])
    assert all(getattr(locking, name).__doc__ for name in locking.__all__)


def test_errors_have_a_base_and_their_docstring_as_message() -> None:
    for name in ERRORS:
        error = getattr(locking, name)
        assert issubclass(error, locking.LockError)
        assert (str(error()), str(error("why"))) == (error.__doc__, "why")
    assert issubclass(locking.LockMisuse, ValueError)
    assert issubclass(locking.LockTimeout, TimeoutError)


def test_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'unlock'"):
        _ = locking.unlock


def test_timeout_names_the_holder_also_as_a_copy() -> None:
    error = copy(locking.LockTimeout("held", holder="web:1"))
    assert (str(error), error.holder, error.errno) == ("held", "web:1", None)


def test_import_of_locking_imports_neither_settings_nor_clients() -> None:
    """Django imports the package before the settings are ready."""
    code = (
        "import sys, locking; "
        "bad = {'django', 'redis', 'kazoo', 'MySQLdb', 'shop', 'inventory'} & set(sys.modules); "
        "sys.exit(', '.join(bad) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
