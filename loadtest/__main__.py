"""`python -m loadtest EXPERIMENT`: run an experiment on the stores of the environment.

EXPERIMENT is a name below or a module. The first line of stdin is its arguments as JSON. It writes
events to stdout; the last is "end". A report that `main` returns is the event before it. The
database of an experiment below is migrated before, and the first event is its versions.
"""

import json
import signal
import sys
from importlib import import_module

import django
from django.core.management import call_command

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
asked = json.loads(sys.stdin.readline())
if sys.argv[1] in EXPERIMENTS:
    from loadtest.load.runner import versions  # imports models

    call_command("migrate", verbosity=0, interactive=False)
    emit("versions", versions=versions())
if report := main(asked):
    emit("report", report=report)
emit("end")
