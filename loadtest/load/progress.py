"""The progress of a load test, computed from its events."""

import time
from typing import Any


class LoadProgress:
    """Counts the buyers served in all runs of a plan."""

    def __init__(self) -> None:
        self.now = ""
        """The run under way."""
        self.total = 0
        self.done = 0
        self._buyers = self._runs_over = 0
        self._began: float | None = None

    def update(self, event: dict[str, Any]) -> bool:
        """Process an event of `loadtest.load.run`; return True if there was progress."""
        if event["event"] == "plan":
            self._buyers = event["buyers"]
            self.total = self._buyers * event["runs"]
        elif event["event"] == "progress" and "system" in event:
            self.now = event["system"]  # a scenario: the number of its steps is unknown
        elif event["event"] == "progress":
            self._began = self._began or time.monotonic()
            self.now = "{backend} + {discipline} #{repeat}".format(**event)
            self.done = self._runs_over * self._buyers + event["served"]
        elif event["event"] == "run":
            self._runs_over += 1
            self.done = self._runs_over * self._buyers
        return event["event"] in ("progress", "run")

    @property
    def per_second(self) -> float:
        """Return the buyers served per second since the first one."""
        lasted = time.monotonic() - self._began if self._began else 0.0
        return self.done / lasted if lasted else 0.0

    @property
    def seconds_left(self) -> int | None:
        """Return the estimated time left in seconds; None while it is unknown."""
        return round((self.total - self.done) / self.per_second) if self.per_second else None

    def as_dict(self) -> dict[str, Any]:
        """Return the progress as JSON for a page."""
        return {
            "now": self.now,
            "done": self.done,
            "of": self.total,
            "per_second": round(self.per_second),
            "left": self.seconds_left,
        }
