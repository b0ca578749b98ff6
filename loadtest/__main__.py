"""`python -m loadtest EXPERIMENT`: run an experiment on the stores of the environment.

The first line of stdin is its arguments as JSON. It writes events to stdout; the last is "end".
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
import_module(EXPERIMENTS[sys.argv[1]]).main(json.loads(sys.stdin.readline()))
emit("end")
