"""`python -m loadtest.game`: the host process of one game, started by `loadtest.game.client`."""

import json
import os
import shutil
import signal
import sys
from contextlib import ExitStack

import django

from devservers.temporary import temporary_directory
from loadtest.kernel.topology import Topology, create_tables

asked = json.loads(os.environ["GAME"])
if os.fork():
    os._exit(0)  # the web worker waits for this process; the game outlives it
os.setsid()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
with ExitStack() as stack:
    folder = temporary_directory("game")
    topology = Topology(servers=["redis"], environ={"LOG_LEVEL": "ERROR"})
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    stores = stack.enter_context(topology.start(folder))
    os.environ.update(stores.environ)
    django.setup()
    from loadtest.game import host

    create_tables()
    game = host.Game(stores, asked["level"])
    stack.callback(game.close)
    host.serve(game, folder / asked["id"], idle=asked["idle"], life=asked["life"])
