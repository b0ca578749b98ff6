"""Find out which Python lock survives which fault; exit 1 if the control survives too much.

Example: manage.py lab survival --library redis-py --fault kill
"""

from loadtest.bench.survival.report import Survival

COMMAND = Survival()
