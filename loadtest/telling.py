"""How an experiment's process tells its parent what happens: one JSON object a line."""

import json
from typing import Any


def say(event: str, **fields: Any) -> None:
    """Tell the parent."""
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 - that is our output
