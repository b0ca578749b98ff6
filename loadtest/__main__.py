"""`python -m loadtest EXPERIMENT`: run an experiment on the stores of the environment.

EXPERIMENT is a name below or a module. The first line of stdin is its arguments as JSON. It writes
events to stdout; the last is "end". A report that `main` returns is the event before it.
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
    "journey": "loadtest.bench.journey.runner",
    "purchase": "loadtest.bench.purchase.runner",
    "scenario": "loadtest.scenarios.runner",
    "recovery": "loadtest.resilience.recovery",
    "restarts": "loadtest.resilience.restarts",
    "slow": "loadtest.resilience.slow",
}

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
django.setup()
main = import_module(EXPERIMENTS.get(sys.argv[1], sys.argv[1])).main
if report := main(json.loads(sys.stdin.readline())):
    emit("report", report=report)
emit("end")
