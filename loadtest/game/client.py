"""Start games, and pass the requests of the pages to their host processes."""

import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.urls import reverse_lazy
from django.utils.translation import gettext_lazy as _

from loadtest.kernel.topology import private_environ
from shop.errors import NotFound, QueueFull, ServiceUnavailable, ShopError

GAMES = 8
"""Games at once on this machine."""
IDLE_SECONDS, LIFE_SECONDS = 120.0, 600.0
START_SECONDS, REPLY_SECONDS = 20.0, 25.0


class GameEnded(NotFound):
    """No host serves this game."""

    title = _("This game has ended")
    advice = _("A game ends two minutes after the last move, and after ten minutes at the latest.")
    link, link_title = reverse_lazy("learn"), _("Back to the course")


class StepOutdated(ShopError):
    """The action is not possible in the present state."""

    code = "step_outdated"
    title = _("That move is no longer possible")
    advice = _("Nothing was changed. The page was out of date, or the move was sent twice.")
    link, link_title = "", _("Back to the game")


def start(level: str, *, life: float | None = None) -> UUID:
    """Start a game of LIFE_SECONDS and return its id. Raise QueueFull or ServiceUnavailable."""
    game, slot, life = uuid4(), _take_slot(), life or LIFE_SECONDS
    asked = {"id": game.hex, "level": level, "idle": IDLE_SECONDS, "life": life}
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "loadtest.game"],
            stdout=subprocess.PIPE,
            cwd=settings.BASE_DIR,
            env=private_environ(Path(os.devnull)) | {"GAME": json.dumps(asked)},
            pass_fds=[slot],  # the lock on the slot ends with the last process of the game
        ) as process:
            assert process.stdout is not None
            is_ready = select.select([process.stdout], [], [], START_SECONDS)[0]
            if not is_ready or b"ready" not in process.stdout.readline():
                raise ServiceUnavailable
    finally:
        os.close(slot)
    return game


def _take_slot() -> int:
    """Return a file that only one game at a time has locked."""
    for number in range(GAMES):
        name = Path(tempfile.gettempdir()) / f"seckill-game-slot-{os.getuid()}-{number}"
        slot = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with suppress(BlockingIOError):
            fcntl.flock(slot, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return slot
        os.close(slot)
    raise QueueFull(str(_("Eight visitors are playing. Please try again in a minute or two.")))


def ask(game: UUID, do: str, **fields: Any) -> dict[str, Any]:
    """Return the state after a request. Raise GameEnded or StepOutdated."""
    found = next(Path(tempfile.gettempdir()).glob(f"seckill-game-*/{game.hex}"), None)
    try:
        with socket.socket(socket.AF_UNIX) as host:
            host.settimeout(REPLY_SECONDS)
            host.connect(str(found))
            host.sendall(json.dumps({"do": do, **fields}).encode() + b"\n")
            reply: dict[str, Any] = json.loads(host.makefile("rb").readline())
    except (OSError, ValueError):
        raise GameEnded from None
    if not reply:
        raise StepOutdated
    return reply
