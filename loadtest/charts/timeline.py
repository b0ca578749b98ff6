"""The timeline of a scenario: who believed to hold the lock, its lease, the writes to the stock.

    draw(variant)              # inline SVG for a page, in the page's colour
    draw(variant, alone=True)  # a file with its own background, light and dark
    png(variant)               # that file as pixels
    rows(variant)              # the same events as a table

There is one lane per process or server. The bar is the belief, the line under it the lease in the
store. Plain SVG without script or inline style, 440 wide; moments close together are stretched, and
the seconds at the bottom show by how much.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.svg import INK, Drawing, tag
from loadtest.charts.timeline_data import SAME, SECOND, Lane, Span, read, rows

__all__ = ["draw", "heading", "png", "read", "rows"]

WIDTH, LEFT, RIGHT = 440, 10, 426
BAR, LABEL, SMALL, TEXT = 16, 13, 11, 12
GLYPH = 6.0
"""The average width of a small letter; a Chinese one is twice as wide."""
EVEN = 0.6
"""The share of the width that all moments divide equally; the rest is proportional to time."""
BELIEF, LEASE, WAIT = "#3a7bbf", "#2f9e63", "#8a8f98"
GOOD, BAD, FAULT = "#2f9e63", "#d5402b", "#8a8f98"
BOLD = {"font_size": TEXT, "font_weight": "bold", "text_anchor": "start"}
WAITING = {"stroke": WAIT, "stroke_width": 3, "stroke_dasharray": "2 4"}
STYLE = (
    "@media (prefers-color-scheme: dark) {"
    " svg.timeline { color: #e6edf3; } .paper { fill: #0d1117; } }"
)


def draw(variant: Mapping[str, Any], *, alone: bool = False) -> SafeString:
    """Return the timeline of one variant of a scenario's result."""
    return _Timeline(variant, heading(variant), alone=alone).svg()


def png(variant: Mapping[str, Any], *, width: int = 2 * WIDTH) -> bytes:
    """Return the timeline as a PNG, `width` pixels wide."""
    return svg.png(draw(variant, alone=True), width)


def heading(variant: Mapping[str, Any]) -> str:
    """Return the first line of the timeline, which screen readers read too."""
    text = _("Repaired: %(guard)s") if variant["is_repaired"] else _("Broken: %(guard)s")
    return text % variant


class _Axis:
    """Maps moments to places: proportional to time, with a minimum distance between moments."""

    def __init__(self, moments: Iterable[int]) -> None:
        self.moments: list[int] = []
        for at in sorted(moments):
            if not self.moments or at - self.moments[-1] > SAME:
                self.moments.append(at)
        self.first, last = self.moments[0], self.moments[-1]
        self.length = max(1, last - self.first)
        steps = max(1, len(self.moments) - 1)
        self.places = [
            LEFT
            + (RIGHT - LEFT) * (EVEN * n / steps + (1 - EVEN) * (at - self.first) / self.length)
            for n, at in enumerate(self.moments)
        ]

    def __call__(self, at: int) -> float:
        place = min(max(bisect_right(self.moments, at), 1), len(self.moments) - 1)
        if len(self.moments) == 1:
            return self.places[0]
        a, b = self.moments[place - 1], self.moments[place]
        share = min(1.0, max(0.0, (at - a) / (b - a)))
        return self.places[place - 1] + share * (self.places[place] - self.places[place - 1])

    def ticks(self) -> list[tuple[float, str]]:
        """Return the places and labels of whole seconds or fractions, as far as they fit."""
        seconds = self.length / SECOND
        step = next(
            s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60) if seconds / s <= 9 or s == 60
        )
        found: list[tuple[float, str]] = []
        for n in range(int(seconds / step) + 1):
            x = self(self.first + round(n * step * SECOND))
            if not found or x - found[-1][0] > 34:
                found.append((x, f"{n * step:g} s"))
        return found


class _Labels:
    """Rows of labels that do not overlap: each label goes into the first row with room."""

    def __init__(self, top: float) -> None:
        self.top = top
        self.rows: list[list[tuple[float, float]]] = []

    @property
    def height(self) -> int:
        """The height of all rows."""
        return LABEL * len(self.rows)

    def place(self, x: float, text: str) -> tuple[float, float]:
        """Reserve room for a label near x; return its middle and its baseline."""
        half = width(text) / 2 + 3
        x = min(max(x, half + 2), WIDTH - half - 2)
        number = next(
            (
                number
                for number, row in enumerate(self.rows)
                if all(x + half <= a or b <= x - half for a, b in row)
            ),
            len(self.rows),
        )
        self.rows[number:] = self.rows[number:] or [[]]
        self.rows[number].append((x - half, x + half))
        return x, self.top + number * LABEL


class _Timeline(Drawing):
    def __init__(self, variant: Mapping[str, Any], title: str, *, alone: bool) -> None:
        super().__init__()
        self.variant, self.title, self.alone = variant, title, alone
        self.data = read(variant)
        self.id = f"over-{crc32(title.encode()):x}"
        self.axis = _Axis(self._moments())
        self.signs: set[str] = set()
        self.y = 22.0

    def _moments(self) -> Iterable[int]:
        yield from (self.data.begin, self.data.end)
        for lane in self.data.lanes.values():
            for span in (*lane.beliefs, *lane.faults, *lane.waits):
                yield from (span.begin, span.end)
            yield from (at for at, sign, _label in lane.marks if sign != "poll")

    def text(self, x: float, y: float, text: str, **attributes: object) -> None:
        super().text(x, y, text, **{"font_size": SMALL, "text_anchor": "middle", **attributes})

    def _label(self, labels: _Labels, x: float, text: str, **attributes: object) -> None:
        middle, baseline = labels.place(x, text)
        self.text(middle, baseline, text, **attributes)

    def svg(self) -> SafeString:
        top = self.y
        processes = ("buyer", "holder", "waiter")
        lanes = self.data.lanes.values()
        # Processes come first, by name; servers and staff in the order of their first event.
        first = sorted((one for one in lanes if one.name.startswith(processes)), key=_sort_key)
        for lane in (*first, *(one for one in lanes if not one.name.startswith(processes))):
            self._lane(lane)
        if self.data.stock:
            self._stock()
        if self.data.overlaps:
            self._overlaps(top)
        self._ticks()
        self._legend()
        height = self.y + 4
        head = [tag("title", self.title), self._defs()]
        if self.alone:
            head.append(tag("style", STYLE))
            head.append(tag("rect", class_="paper", width=WIDTH, height=height, fill="#ffffff"))
        head.append(tag("text", self.title, x=LEFT, y=14, font_size=TEXT, font_weight="bold"))
        paper = {"color": INK, "width": WIDTH, "height": height} if self.alone else {}
        parts = [*head, *self.parts]
        return svg.frame(self.title, (WIDTH, height), parts, class_="timeline", **paper)

    def _defs(self) -> SafeString:
        stripe = tag("rect", width=3, height=6, fill=BAD)
        hatch = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
        dots = tag("rect", width=2, height=5, fill=FAULT)
        return tag(
            "defs",
            tag("pattern", stripe, id=self.id, width=6, height=6, **hatch)
            + tag("pattern", dots, id=f"{self.id}-f", width=5, height=5, **hatch),
        )

    def _lane(self, lane: Lane) -> None:
        y = self.y + 16
        self.text(LEFT, y - 5, _(lane.name), **BOLD)
        self.line(LEFT, y + 8, RIGHT, y + 8, stroke=WAIT, stroke_opacity=0.35)
        for span in lane.waits:
            self.signs.add("wait")
            self.line(self.axis(span.begin), y + 8, self.axis(span.end), y + 8, **WAITING)
        for span in lane.beliefs:
            self.signs.add("belief")
            self.add("rect", **self._extent(span), y=y, height=BAR, rx=3, fill=BELIEF)
        texts: list[tuple[float, str, str]] = []
        for span in lane.faults:
            extent = self._extent(span)
            if span.what != "works":  # a process that works is not faulty
                box = {**extent, "y": y - 2, "height": BAR + 4, "rx": 2}
                self.add("rect", fill="#ffffff", fill_opacity=0.45, **box)
                line = {"stroke": "currentColor", "stroke_width": 0.8}
                self.add("rect", fill=f"url(#{self.id}-f)", fill_opacity=0.6, **line, **box)
            texts.append((extent["x"] + extent["width"] / 2, f"{_(span.what)} {seconds(span)}", ""))
        for span in lane.leases:
            self.signs.add("lease")
            self.add("rect", **self._extent(span), y=y + BAR + 2, height=3, fill=LEASE)
        if polls := [self.axis(at) for at, sign, _label in lane.marks if sign == "poll"]:
            self.signs.add("poll")
            strokes = "".join(f"M{x:.1f} {y + 2:.1f}v12" for x in polls)
            self.add("path", d=strokes, stroke=BAD)
        # Writes are drawn last, above everything else.
        for at, sign, label in sorted(lane.marks, key=lambda mark: mark[1] in ("good", "bad")):
            if sign == "poll":
                continue
            x = self.axis(at)
            self._sign(sign, x, y + BAR / 2)
            if label:
                texts.append((x, translate(label), sign))
        labels = _Labels(y + BAR + 16)
        for x, text, sign in sorted(texts):
            self._label(labels, x, text, fill=BAD if sign in ("bad", "kill") else "currentColor")
        self.y = y + BAR + 10 + labels.height

    def _extent(self, span: Span) -> dict[str, float]:
        x = self.axis(span.begin)
        return {"x": x, "width": max(2.0, self.axis(span.end) - x)}

    def _sign(self, sign: str, x: float, y: float) -> None:
        self.signs.add(sign)
        ring = {"cx": x, "cy": y, "stroke": "#ffffff", "stroke_width": 1.5}
        stroke = {"fill": "none", "stroke": "#ffffff", "stroke_width": 1.8}
        if sign == "good":
            self.add("circle", r=6.5, fill=GOOD, **ring)
            self.add("path", d=f"M{x - 3:.1f} {y:.1f}l2.2 2.4l4 -4.8", **stroke)
        elif sign == "bad":
            self.add("circle", r=6.5, fill=BAD, **ring)
            self.add("path", d=f"M{x - 2.6:.1f} {y - 2.6:.1f}l5.2 5.2m0 -5.2l-5.2 5.2", **stroke)
        elif sign == "read":
            self.add("circle", r=4.5, fill="#ffffff", cx=x, cy=y, stroke=BELIEF, stroke_width=2)
        elif sign == "kill":
            cross = {"fill": "none", "stroke": BAD, "stroke_width": 3}
            self.add("path", d=f"M{x - 5:.1f} {y - 6:.1f}l10 12m0 -12l-10 12", **cross)
        elif sign == "no":
            self.add("rect", x=x - 2, y=y - 8, width=4, height=16, fill=WAIT)
        elif sign == "wake":
            self.add("path", d=f"M{x - 4:.1f} {y - 9:.1f}h8l-4 7z", fill=BAD)
        elif sign == "poll":
            self.add("rect", x=x - 0.5, y=y - 6, width=1, height=12, fill=BAD)
        else:
            self.add("path", d=f"M{x:.1f} {y - 7:.1f}l6 7l-6 7l-6 -7z", fill="currentColor")

    def _stock(self) -> None:
        y, stock = self.y + 14, self.variant["facts"].get("stock", 0)
        self.text(LEFT, y - 5, _("stock"), **BOLD)
        self.line(LEFT, y + 6, RIGHT, y + 6, stroke=WAIT, stroke_opacity=0.35)
        labels = _Labels(y + 22)
        for at, sold in self.data.stock:
            x, is_over = self.axis(at), sold > stock
            self.add("rect", x=x - 4, y=y + 2, width=8, height=8, fill=BAD if is_over else GOOD)
            text = _("%(sold)d of %(stock)d sold") % {"sold": sold, "stock": stock}
            if len(self.data.stock) > 3:  # no room for sentences
                text = f"{sold}/{stock}"
            bold = {"fill": BAD, "font_weight": "bold"} if is_over else {}
            self._label(labels, x, text, **bold)
        self.y = y + 16 + labels.height

    def _overlaps(self, top: float) -> None:
        y = self.y + 6
        labels = _Labels(y + 20)
        self.signs.add("over")
        for span in self.data.overlaps:
            extent = self._extent(span)
            self.add("rect", **extent, y=top, height=y - top, fill=BAD, fill_opacity=0.12)
            self.add("rect", **extent, y=y, height=9, fill=f"url(#{self.id})", stroke=BAD)
            text = seconds(span)
            if len(self.data.overlaps) == 1:
                text = _("two believe: %(seconds)s") % {"seconds": text}
            elif extent["width"] < width(text):
                continue
            x = extent["x"] + extent["width"] / 2
            self._label(labels, x, text, fill=BAD, font_weight="bold")
        self.y = y + 14 + labels.height

    def _ticks(self) -> None:
        y = self.y + 4
        self.line(LEFT, y, RIGHT, y, stroke_width=0.8)
        for x, label in self.axis.ticks():
            self.line(x, y, x, y + 4, stroke_width=0.8)
            half = width(label) / 2
            self.text(min(max(x, half + 2), WIDTH - half - 2), y + 14, label)
        self.y = y + 20

    def _legend(self) -> None:
        x = float(LEFT)
        for sign, words in (
            ("belief", _("believes it holds")),
            ("lease", _("lease in the store")),
            ("wait", _("waits")),
            ("over", _("two believe")),
            ("good", _("write accepted")),
            ("bad", _("write refused")),
            ("wake", _("woken")),
            ("poll", _("polls")),
        ):
            if sign not in self.signs:
                continue
            wide = 22 + width(words) + 10
            if x + wide > WIDTH:
                x, self.y = float(LEFT), self.y + 16
            self._sample(sign, x, self.y + 6)
            self.text(x + 22, self.y + 10, words, text_anchor="start")
            x += wide
        self.y += 18

    def _sample(self, sign: str, x: float, y: float) -> None:
        if sign == "belief":
            self.add("rect", x=x, y=y - 5, width=18, height=10, rx=3, fill=BELIEF)
        elif sign == "lease":
            self.add("rect", x=x, y=y - 1, width=18, height=3, fill=LEASE)
        elif sign == "wait":
            self.line(x, y, x + 18, y, **WAITING)
        elif sign == "over":
            fill = f"url(#{self.id})"
            self.add("rect", x=x, y=y - 4, width=18, height=9, fill=fill, stroke=BAD)
        else:
            self._sign(sign, x + 9, y + 5 if sign == "wake" else y)


def width(text: str) -> float:
    """Return the approximate width of a small text."""
    return sum(GLYPH if ord(letter) < 0x2E80 else 2 * GLYPH for letter in text)


def seconds(span: Span) -> str:
    """Return the length of a span as text."""
    length = (span.end - span.begin) / SECOND
    return f"{length:.1f} s" if length >= 0.1 else f"{length * 1000:.0f} ms"


def translate(label: str) -> str:
    """Return a recorded label in the active language; a number follows | in the label."""
    text, _bar, number = label.partition("|")
    return _(text) % {"quantity": number} if number else _(text)


def _sort_key(lane: Lane) -> str:
    return lane.name.replace("holder", "a")  # the first holder comes first
