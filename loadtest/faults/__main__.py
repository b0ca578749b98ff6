"""`python -m loadtest.faults MODULE:CLASS`: a worker process; see worker.py."""

import sys

from loadtest.faults.worker import main

main(sys.argv[1])
