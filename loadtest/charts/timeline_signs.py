"""The signs of a timeline: they differ by shape, colour only repeats it."""

from typing import Any

from django.utils.safestring import SafeString

from loadtest.charts.svg import Drawing, tag

GOOD, BAD, FAULT = "#2f9e63", "#d5402b", "#8a8f98"
BELIEF, LEASE = "#3a7bbf", "#2f9e63"
WAITING = {"stroke": FAULT, "stroke_width": 3, "stroke_dasharray": "2 4"}
KEY = {"fill": LEASE, "fill_opacity": 0.25, "stroke": LEASE}
RING = {"r": 6.5, "stroke": "#ffffff", "stroke_width": 1.5}
LINE = {"fill": "none", "stroke": "#ffffff", "stroke_width": 1.8}
_SHAPES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "good": [("circle", {"fill": GOOD, **RING}), ("path", {"d": "M-3 0l2.2 2.4l4 -4.8", **LINE})],
    "bad": [
        ("circle", {"fill": BAD, **RING}),
        ("path", {"d": "M-2.6 -2.6l5.2 5.2m0 -5.2l-5.2 5.2", **LINE}),
    ],
    "read": [("circle", {"r": 4.5, "fill": "#ffffff", "stroke": BELIEF, "stroke_width": 2})],
    "kill": [
        ("path", {"d": "M-5 -6l10 12m0 -12l-10 12", **LINE, "stroke": BAD, "stroke_width": 3})
    ],
    "no": [("rect", {"x": -2, "y": -8, "width": 4, "height": 16, "fill": FAULT})],
    "wake": [("path", {"d": "M-4 -9h8l-4 7z", "fill": BAD})],
    "poll": [("rect", {"x": -0.5, "y": -6, "width": 1, "height": 12, "fill": BAD})],
    "mark": [("path", {"d": "M0 -7l6 7l-6 7l-6 -7z", "fill": "currentColor"})],
    "belief": [("rect", {"x": -9, "y": -5, "width": 18, "height": 10, "rx": 3, "fill": BELIEF})],
    "lease": [("rect", {"x": -9, "y": -5, "width": 18, "height": 10, "rx": 2, **KEY})],
    "wait": [("line", {"x1": -9, "x2": 9, **WAITING})],
    "over": [
        ("rect", {"x": -9, "y": -4, "width": 18, "height": 9, "fill": "none", "stroke": BAD}),
        ("path", {"d": "M-9 5l9 -9m-3 9l9 -9m-3 9l6 -6", "stroke": BAD, "stroke_width": 3}),
    ],
    "stock-good": [("rect", {"x": -4, "y": -4, "width": 8, "height": 8, "fill": GOOD})],
    "stock-bad": [("path", {"d": "M0 -6l6 6l-6 6l-6 -6z", "fill": BAD})],
}


def sign(drawing: Drawing, name: str, x: float, y: float, **attributes: object) -> None:
    """Draw a sign around a point."""
    parts = SafeString("".join(tag(shape, **details) for shape, details in _SHAPES[name]))
    drawing.add("g", parts, transform=f"translate({x:.1f} {y:.1f})", **attributes)
