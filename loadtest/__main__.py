"""`python -m loadtest EXPERIMENT`: run an experiment on the stores of the environment.

It reads its arguments from stdin as JSON and writes events to stdout; the last event is "end".
"""

import json
import signal
import sys
from importlib import import_module

import django

from devservers.faults.worker import emit

EXPERIMENTS = {
    "run": "loadtest.load.runner",
    "bench": "loadtest.bench.locks.runner",
    "cache": "loadtest.bench.caches",
    "keys": "loadtest.bench.keys",
    "purchase": "loadtest.bench.purchase.runner",
    "scenario": "loadtest.scenarios.runner",
    "jobs": "loadtest.resilience.jobs.soak",
    "endure": "loadtest.resilience.runner",
}

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
django.setup()
import_module(EXPERIMENTS[sys.argv[1]]).main(json.load(sys.stdin))
emit("end")
