"""`python -m devservers.faults MODULE:CLASS`: a worker process; see worker.py."""

import sys

from devservers.faults.worker import main

main(sys.argv[1])
