"""A temporary folder for each test module, so that games of others do not take its places."""

import shutil
import tempfile
from collections.abc import Iterator

import pytest

from loadtest.game import client


@pytest.fixture(scope="module", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Count the games of this module only. The path is short, as that of a socket must be."""
    tmp_path_factory.getbasetemp()  # outside of the folder, for the tests after this module
    folder = tempfile.mkdtemp(prefix="g")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", folder)
        patch.setattr(tempfile, "tempdir", folder)
        patch.setattr(client, "START_SECONDS", 120.0)  # a busy machine
        yield
    shutil.rmtree(folder, ignore_errors=True)  # a game may still be ending
