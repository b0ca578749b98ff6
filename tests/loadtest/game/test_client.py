"""Games end by themselves, leave nothing behind, and are limited in number."""

from __future__ import annotations

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
from loadtest.game import client
from shop.errors import QueueFull
from tests.loadtest.game.places import own_places  # noqa: F401 - a fixture

STARTER = """
import django, time
django.setup()
from loadtest.game import client
client.IDLE_SECONDS, client.LIFE_SECONDS = {idle}, {life}
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


def start_elsewhere(idle: float, life: float) -> UUID:
    """Start a game from a process that stands for a web worker, and kill that process."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTER.format(idle=idle, life=life)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=settings.BASE_DIR,
    ) as worker:
        assert worker.stdout is not None
        game = UUID(worker.stdout.readline().strip())
        worker.kill()
    return game


@pytest.mark.parametrize(("idle", "life"), [(5.0, 600.0), (60.0, 5.0)], ids=["idle", "in use"])
def test_game_ends_though_its_web_worker_was_killed(idle: float, life: float) -> None:
    game = start_elsewhere(idle, life)
    folder = folder_of(game)
    processes = processes_of(folder)
    assert len(processes) == 4  # the host, two buyers, Redis

    def has_ended() -> bool:
        try:
            if life < idle:
                client.ask(game, "begin", level="race", guarded=False)
        except client.GameEnded:
            return True
        return not living(processes)

    until(has_ended, "the end of the game")
    until(lambda: not living(processes), "the end of its processes")
    assert not folder.exists()
    with pytest.raises(client.GameEnded):
        client.ask(game, "state")


def test_killed_host_takes_its_processes_with_it() -> None:
    game = client.start("fence")
    folder = folder_of(game)
    for action in ("step", "pause"):  # a stopped process, too
        turn = client.ask(game, "state")["turn"]
        client.ask(game, "act", buyer="A", verb=action, turn=turn)
    processes = processes_of(folder)
    os.kill(int(folder.name.split("-")[2].split(".")[1]), signal.SIGKILL)
    until(lambda: not living(processes), "the end of the processes")
    remove_abandoned()
    assert not folder.exists()


def test_one_game_more_than_allowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GAMES", 1)
    game = client.start("race")
    with pytest.raises(QueueFull):
        client.start("race")
    processes = processes_of(folder_of(game))
    client.ask(game, "end")
    until(lambda: not living(processes), "a free place")
    client.ask(client.start("race"), "end")
