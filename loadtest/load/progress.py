"""The progress of a load test, computed from its events."""

import time
from typing import Any

CURVE_POINTS = 120
NAMES, EXPLAINED = ("backend", "discipline", "repeat"), "lost_updates"
SHOWN = (*NAMES, "stock", "sold", "oversold", "verdict", "why", "sold_at", "marks", EXPLAINED)
"""The figures of a finished run that the page shows while others are still running."""


class LoadProgress:
    """Counts the buyers served in all runs of a plan, and follows the run under way."""

    def __init__(self) -> None:
        self.now = ""
        """The name of the run under way."""
        self.run: dict[str, Any] | None = None
        """Its figures so far, with the keys of a finished run that a chart reads."""
        self.over: list[dict[str, Any]] = []
        self.starting: list[str] = []
        """What has been started so far, the last one still on its way."""
        self.total = 0
        self.done = 0
        self._skipped = 0
        """Buyers of the runs that did not take place: they count as done, but no one was served."""
        self._plan: dict[str, Any] = {}
        self._began: float | None = None

    def update(self, event: dict[str, Any]) -> bool:
        """Process an event of `loadtest.load.run`; return True if there was progress."""
        if event["event"] == "plan":
            self._plan = event
            self.total = event["buyers"] * event["runs"]
        elif event["event"] == "starting":
            self.starting = [*dict.fromkeys([*self.starting, event["what"]])]
        elif event["event"] == "progress" and "system" in event:
            self.now = event["system"]  # a scenario: the number of its steps is unknown
        elif event["event"] == "progress":
            self._began = self._began or time.monotonic()
            self.now = "{backend} + {discipline} #{repeat}".format(**event)
            self.done = len(self.over) * self._plan["buyers"] + event["served"]
            self._follow(event)
        elif event["event"] == "run":
            self._finish(event["run"])
            self._skipped += self._plan["buyers"] * (event["run"]["verdict"] == "not-run")
            self.done = len(self.over) * self._plan["buyers"]
        return event["event"] in ("progress", "run", "starting")

    def _follow(self, event: dict[str, Any]) -> None:
        stock, points = self._plan["stock"], self.run["sold_at"] if self.run else [(0.0, 0)]
        points.append((event["at"], event["sold"]))
        if len(points) > CURVE_POINTS:
            del points[1:-1:2]
        self.run = {
            **{name: event[name] for name in (*NAMES, "served", "sold", "marks", "requested")},
            "buyers": self._plan["buyers"],
            "stock": stock,
            "oversold": max(0, event["sold"] - stock),
            "sold_at": points,
        }

    def _finish(self, run: dict[str, Any]) -> None:
        """Keep the figures of a run, and its curve if it is the worst run of its guard so far."""
        self.run, row = None, {name: run[name] for name in SHOWN}
        if any(other[EXPLAINED] for other in self.over):
            row[EXPLAINED] = None  # the page explains the first one
        for other in self.over:
            if other["sold_at"] and all(other[name] == row[name] for name in NAMES[:2]):
                (row if other["oversold"] >= row["oversold"] else other)["sold_at"] = []
        self.over.append(row)

    @property
    def per_second(self) -> float:
        """Return the buyers served per second since the first one."""
        lasted = time.monotonic() - self._began if self._began else 0.0
        return (self.done - self._skipped) / lasted if lasted > 0.5 else 0.0  # too early to tell

    def as_dict(self) -> dict[str, Any]:
        """Return the progress as JSON for a page; `left` is the estimated time left in seconds."""
        rate = self.per_second
        return {
            "now": self.now,
            "starting": self.starting,
            "done": self.done,
            "of": self.total,
            "per_second": round(rate),
            "left": round((self.total - self.done) / rate) if rate else None,
            "run": self.run,
            "over": self.over,
        }
