"""Games end by themselves, leave nothing behind, and are limited in number."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from uuid import UUID

import pytest
from django.conf import settings

from devservers.faults.waiting import until
from devservers.temporary import remove_abandoned
from loadtest.game import client, record
from shop.errors import QueueFull
from tests.loadtest.game.places import own_places  # noqa: F401 - a fixture

STARTER = """
import django, time
django.setup()
from loadtest.game import client
client.START_SECONDS, client.IDLE_SECONDS = 120.0, {idle}
print(client.start("race").hex, flush=True)
time.sleep(600)
"""


def folder_of(game: UUID) -> Path:
    return next(Path(tempfile.gettempdir()).glob(f"seckill-game-*/{game.hex}")).parent


def processes_of(folder: Path) -> set[int]:
    """The processes of a game: the host, its buyers and its Redis, by their session or parent."""
    host = int(folder.name.split("-")[2].split(".")[1])
    found = {host}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == host:
            found.add(int(stat.parent.name))
    return found


def living(processes: set[int]) -> set[int]:
    return {pid for pid in processes if Path(f"/proc/{pid}").exists()}


def start_elsewhere(idle: float) -> UUID:
    """Start a game from a process that stands for a web worker, and kill that process."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER.format(idle=idle)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=settings.BASE_DIR,
    ) as worker:
        assert worker.stdout is not None
        game = UUID(worker.stdout.readline().strip())
        worker.kill()
    return game


def until_ended(folder: Path, processes: set[int]) -> None:
    until(lambda: not living(processes), "the end of its processes", 60)
    until(lambda: not folder.exists(), "the end of its folder")


def test_idle_game_ends_though_its_web_worker_was_killed() -> None:
    game = start_elsewhere(idle=5.0)
    folder = folder_of(game)
    processes = processes_of(folder)
    assert len(processes) == 4  # the host, two buyers, Redis
    until_ended(folder, processes)
    with pytest.raises(client.GameEnded):
        client.ask(game, "state")


def test_game_in_use_ends_and_frees_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GAMES", 1)
    game = client.start("race", life=5.0)
    with pytest.raises(QueueFull):
        client.start("race")
    folder = folder_of(game)
    processes = processes_of(folder)

    def has_ended() -> bool:
        try:
            client.ask(game, "begin", level="race", guarded=False)
        except client.GameEnded:
            return True
        return False

    until(has_ended, "the end of the game", 60)
    until_ended(folder, processes)
    game = client.start("fence")
    folder = folder_of(game)
    for action in ("step", "pause"):  # a stopped process, too
        turn = client.ask(game, "state")["turn"]
        client.ask(game, "act", buyer="A", verb=action, turn=turn)
    processes = processes_of(folder)
    os.kill(int(folder.name.split("-")[2].split(".")[1]), signal.SIGKILL)
    until(lambda: not living(processes), "the end of the killed host's processes", 60)
    remove_abandoned()
    assert not folder.exists()


def test_interrupted_recording_leaves_no_game(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Path] = []

    def interrupt(recorder: record.Recorder) -> None:
        played.append(folder_of(recorder.game))
        raise KeyboardInterrupt

    monkeypatch.setattr(record.Recorder, "record", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(record.record())
    (folder,) = played
    until(lambda: not folder.exists(), "the end of its game", client.IDLE_SECONDS / 2)
