"""How far a load test is, from its events."""

import time
from typing import Any


class Pace:
    """Counts the buyers who were served, over all runs of a plan."""

    def __init__(self) -> None:
        self.now = ""
        """The run under way."""
        self.total = 0
        self.done = 0
        self._buyers = self._runs_over = 0
        self._began: float | None = None

    def hear(self, event: dict[str, Any]) -> bool:
        """Take an event of `loadtest.load.run`; whether it moved."""
        if event["event"] == "plan":
            self._buyers = event["buyers"]
            self.total = self._buyers * event["runs"]
        elif event["event"] == "progress" and "system" in event:
            self.now = event["system"]  # a scenario: its halves cannot be counted out
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
        """Buyers served a second since the first was."""
        lasted = time.monotonic() - self._began if self._began else 0.0
        return self.done / lasted if lasted else 0.0

    @property
    def seconds_left(self) -> int | None:
        """At this pace; None while it is not known."""
        return round((self.total - self.done) / self.per_second) if self.per_second else None

    def as_dict(self) -> dict[str, Any]:
        """For a page."""
        return {
            "now": self.now,
            "done": self.done,
            "of": self.total,
            "per_second": round(self.per_second),
            "left": self.seconds_left,
        }
