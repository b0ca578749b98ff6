"""An experiment in a process of its own, which ends with its servers and their folders."""

import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from devservers.faults.worker import emit
from loadtest.kernel.session import Experiment
from loadtest.kernel.topology import Stores, Topology


def main(asked: dict[str, Any], stores: Stores) -> None:
    """Say when the servers are about to be stopped."""
    stores.start(closing(SimpleNamespace(close=lambda: emit("stopping"))))


def test_signal_while_the_servers_stop_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has seen enough ends the process, which may be ending by itself."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Experiment(__name__, {}, Topology(servers=["redis"])) as experiment:
        assert "stopping" in (event["event"] for event in experiment.events())
    assert list(tmp_path.iterdir()) == []
