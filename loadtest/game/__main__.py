"""`python -m loadtest.game`: the host process of one game, started by `loadtest.game.client`."""

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack

import django

from devservers import Redis
from devservers.temporary import temporary_directory


def main() -> None:
    """Serve the game that stdin describes, and remove everything at its end."""
    asked = json.load(sys.stdin)
    if os.fork():
        os._exit(0)  # the web worker waits for this process; the game outlives it
    os.setsid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with ExitStack() as stack:
        folder = temporary_directory("game")
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        os.chdir(folder)
        server = Redis(prefer="embedded")
        stack.callback(server.stop)
        server.launch()
        os.environ.update(
            SHOP_VAR=str(folder),
            DATABASE_URL=f"sqlite:///{folder / 'game.sqlite3'}",
            REDIS_URL=server.url,
        )
        django.setup()
        from loadtest.game import host

        host.create_tables()
        server.wait_ready()
        game = host.Game(server)
        stack.callback(game.close)
        game.begin(asked["level"], asked["guarded"])
        host.serve(game, folder / asked["id"], idle=asked["idle"], life=asked["life"])


main()
