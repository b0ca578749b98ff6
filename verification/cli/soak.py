"""Send mixed load to a whole shop for hours, and count what is left behind.

Example: manage.py verify soak --seconds 1800
"""

from dataclasses import dataclass

from loadtest.cli.endure import Endurance
from loadtest.kernel.params import Params, param


@dataclass(frozen=True, kw_only=True)
class Soak(Params):
    """The load."""

    seconds: int = param(1800, "duration in seconds", limits=(12, 86_400))
    seed: int = param(1, "what each visit does", limits=(0, 2**32))


STORES = ("redis", "zookeeper")
COMMAND = Endurance("soak", STORES, experiment="verification.soak", pay_within=60, params=Soak)
