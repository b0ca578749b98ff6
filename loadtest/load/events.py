"""How an experiment's process tells its parent what happens: one JSON object a line."""

import json
import sys
from typing import Any


def say(event: str, **fields: Any) -> None:
    """Tell the parent; thread-safe, as a line is one write."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()
