"""`python -m loadtest MODULE`: start the servers of an experiment and run the module's `main`.

The first line of stdin is {"asked": its arguments, "topology": its servers}. It writes events to
stdout; the first are the missing servers and the versions, the last is "end". A report that `main`
returns is the event before it.
"""

import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path

import django

from devservers.faults.worker import emit
from loadtest.kernel.topology import Topology, create_tables

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
request = json.loads(sys.stdin.readline())
topology = Topology(**request["topology"])
with topology.start(Path.cwd(), lambda what: emit("starting", what=what)) as stores:
    emit("stores", missing=stores.missing)
    if not stores.missing or stores.topology.runs_without:
        os.environ.clear()  # not the variables that count the metrics of a shop
        os.environ.update(stores.environ)
        django.setup()
        main = import_module(sys.argv[1]).main
        if "database" not in stores.missing:
            from loadtest.load.runner import versions  # it imports models

            emit("starting", what="tables")
            create_tables()
            emit("versions", versions=versions())
        if report := main(request["asked"], stores):
            emit("report", report=report)
emit("end")
