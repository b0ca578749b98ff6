"""The picture of a scenario: who believed to hold the lock, what was true, what reached the stock.

    draw(half)              # inline SVG for a page: inks in the page's colour
    draw(half, alone=True)  # a file, with its own paper, light and dark
    png(half)               # that file as pixels
    rows(half)              # the same events as a table

One lane an actor or server. The bar is the belief, the line under it the lease as the store has it.
Plain SVG without script or inline style, 440 wide; what happens close together is stretched, and
the seconds at the bottom say by how much.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any
from zlib import crc32

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.svg import INK, tag
from loadtest.charts.timeline_data import SAME, SECOND, Lane, Span, read, rows

__all__ = ["draw", "heading", "png", "read", "rows"]

WIDTH, LEFT, RIGHT = 440, 10, 426
BAR, LABEL, SMALL, TEXT = 16, 13, 11, 12
GLYPH = 6.0
"""Width of a small letter, on average; a Chinese one has two of it."""
EVEN = 0.6
"""Share of the width that goes to every moment alike; the rest goes by the clock."""
BELIEF, LEASE, WAIT = "#3a7bbf", "#2f9e63", "#8a8f98"
GOOD, BAD, FAULT = "#2f9e63", "#d5402b", "#8a8f98"


def draw(half: Mapping[str, Any], *, alone: bool = False) -> SafeString:
    """The picture of one half of a scenario's result."""
    return _Picture(half, heading(half), alone=alone).svg()


def png(half: Mapping[str, Any], *, width: int = 2 * WIDTH) -> bytes:
    """The same as a picture, `width` pixels wide."""
    return svg.png(draw(half, alone=True), width)


def heading(half: Mapping[str, Any]) -> str:
    """The picture's first line, and what a screen reader says of it."""
    said = _("Repaired: %(guard)s") if half["is_repaired"] else _("Broken: %(guard)s")
    return said % half


class _Axis:
    """Where a moment is: by the clock, but every moment of note keeps a distance to the next."""

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
        """Whole steps of the clock, so far as there is room for their labels."""
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


class _Rows:
    """Places labels so that none covers another: each in the first row with room."""

    def __init__(self) -> None:
        self.taken: list[list[tuple[float, float]]] = []

    def place(self, x: float, text: str) -> tuple[float, int]:
        """The middle of the label, moved off the edges, and its row."""
        half = width(text) / 2 + 3
        x = min(max(x, half + 2), WIDTH - half - 2)
        for number in range(len(self.taken) + 1):
            if number == len(self.taken):
                self.taken.append([])
            if all(x + half <= a or b <= x - half for a, b in self.taken[number]):
                self.taken[number].append((x - half, x + half))
                return x, number
        raise AssertionError


class _Picture:
    def __init__(self, half: Mapping[str, Any], title: str, *, alone: bool) -> None:
        self.half, self.title, self.alone = half, title, alone
        self.story = read(half)
        self.id = f"over-{crc32(title.encode()):x}"
        self.axis = _Axis(self._moments())
        self.parts: list[SafeString] = []
        self.signs: set[str] = set()
        self.y = 22.0

    def _moments(self) -> Iterable[int]:
        yield from (self.story.begin, self.story.end)
        for lane in self.story.lanes.values():
            for span in (*lane.beliefs, *lane.faults, *lane.waits):
                yield from (span.begin, span.end)
            yield from (at for at, sign, _label in lane.marks if sign != "poll")

    def add(self, name: str, text: object = "", **attributes: object) -> None:
        self.parts.append(tag(name, text, **attributes))

    def text(self, x: float, y: float, text: str, **attributes: object) -> None:
        attributes = {"font_size": SMALL, "text_anchor": "middle", **attributes}
        self.add("text", text, x=x, y=y, **attributes)

    def svg(self) -> SafeString:
        top = self.y
        people = ("buyer", "holder", "waiter")
        lanes = self.story.lanes.values()
        # Who holds and waits comes first, by name; servers and staff as they came.
        actors = sorted((one for one in lanes if one.name.startswith(people)), key=_name_of)
        for lane in (*actors, *(one for one in lanes if not one.name.startswith(people))):
            self._lane(lane)
        if self.story.stock:
            self._stock()
        if self.story.overlaps:
            self._overlaps(top)
        self._ticks(top)
        self._legend()
        height = self.y + 4
        head = [tag("title", self.title), self._defs()]
        if self.alone:
            head.append(tag("style", STYLE))
            head.append(tag("rect", class_="paper", width=WIDTH, height=height, fill="#ffffff"))
        head.append(tag("text", self.title, x=LEFT, y=14, font_size=TEXT, font_weight="bold"))
        paper = {"color": INK, "width": WIDTH, "height": height} if self.alone else {}
        parts = [*head, *self.parts]
        return svg.picture(self.title, (WIDTH, height), parts, class_="timeline", **paper)

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
        self.add("text", _(lane.name), x=LEFT, y=y - 5, font_size=TEXT, font_weight="bold")
        self.add("line", x1=LEFT, x2=RIGHT, y1=y + 8, y2=y + 8, stroke=WAIT, stroke_opacity=0.35)
        for span in lane.waits:
            self.signs.add("wait")
            x, end = self.axis(span.begin), self.axis(span.end)
            self.add(
                "line", x1=x, x2=end, y1=y + 8, y2=y + 8, stroke=WAIT, stroke_width=3,
                stroke_dasharray="2 4",
            )  # fmt: skip
        for span in lane.beliefs:
            self.signs.add("belief")
            x, wide = self._extent(span)
            self.add("rect", x=x, y=y, width=wide, height=BAR, rx=3, fill=BELIEF)
        labels = _Rows()
        below: list[tuple[float, float, str, str]] = []
        for span in lane.faults:
            x, wide = self._extent(span)
            if span.what != "works":  # else nothing is wrong with it, it takes its time
                box = {"x": x, "y": y - 2, "width": wide, "height": BAR + 4, "rx": 2}
                self.add("rect", fill="#ffffff", fill_opacity=0.45, **box)
                line = {"stroke": "currentColor", "stroke_width": 0.8}
                self.add("rect", fill=f"url(#{self.id}-f)", fill_opacity=0.6, **line, **box)
            said = f"{_(span.what)} {seconds(span)}"
            below.append((x + wide / 2, 0, said, "fault"))
        for span in lane.leases:
            self.signs.add("lease")
            x, wide = self._extent(span)
            self.add("rect", x=x, y=y + BAR + 2, width=wide, height=3, fill=LEASE)
        if polls := [self.axis(at) for at, sign, _label in lane.marks if sign == "poll"]:
            self.signs.add("poll")
            strokes = "".join(f"M{x:.1f} {y + 2:.1f}v12" for x in polls)
            self.add("path", d=strokes, stroke=BAD)
        # What was written lies on top of everything.
        for at, sign, label in sorted(lane.marks, key=lambda mark: mark[1] in ("good", "bad")):
            if sign == "poll":
                continue
            x = self.axis(at)
            self._sign(sign, x, y + BAR / 2)
            if label:
                below.append((x, 0, say(label), sign))
        for x, _unused, label, sign in sorted(below):
            place, row = labels.place(x, label)
            colour = {"bad": BAD, "kill": BAD}.get(sign, "currentColor")
            self.text(place, y + BAR + 16 + row * LABEL, label, fill=colour)
        self.y = y + BAR + 10 + len(labels.taken) * LABEL

    def _extent(self, span: Span) -> tuple[float, float]:
        x = self.axis(span.begin)
        return x, max(2.0, self.axis(span.end) - x)

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
        y, stock = self.y + 14, self.half["facts"].get("stock", 0)
        self.add("text", _("stock"), x=LEFT, y=y - 5, font_size=TEXT, font_weight="bold")
        self.add("line", x1=LEFT, x2=RIGHT, y1=y + 6, y2=y + 6, stroke=WAIT, stroke_opacity=0.35)
        labels = _Rows()
        rows = 0
        for at, sold in self.story.stock:
            x, is_over = self.axis(at), sold > stock
            colour = BAD if is_over else GOOD
            self.add("rect", x=x - 4, y=y + 2, width=8, height=8, fill=colour)
            said = _("%(sold)d of %(stock)d sold") % {"sold": sold, "stock": stock}
            if len(self.story.stock) > 3:  # no room for sentences
                said = f"{sold}/{stock}"
            place, row = labels.place(x, said)
            rows = max(rows, row + 1)
            bold = {"fill": BAD, "font_weight": "bold"} if is_over else {}
            self.text(place, y + 22 + row * LABEL, said, **bold)
        self.y = y + 16 + rows * LABEL

    def _overlaps(self, top: float) -> None:
        y = self.y + 6
        labels = _Rows()
        rows = 0
        self.signs.add("over")
        for span in self.story.overlaps:
            x, wide = self._extent(span)
            self.add(
                "rect", x=x, y=top, width=wide, height=y - top, fill=BAD, fill_opacity=0.12
            )  # fmt: skip
            self.add("rect", x=x, y=y, width=wide, height=9, fill=f"url(#{self.id})", stroke=BAD)
            said = seconds(span)
            if len(self.story.overlaps) == 1:
                said = _("two believe: %(seconds)s") % {"seconds": said}
            elif wide < width(said):
                continue
            place, row = labels.place(x + wide / 2, said)
            rows = max(rows, row + 1)
            self.text(place, y + 20 + row * LABEL, said, fill=BAD, font_weight="bold")
        self.y = y + 14 + rows * LABEL

    def _ticks(self, top: float) -> None:
        y = self.y + 4
        self.add("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, stroke="currentColor", stroke_width=0.8)
        for x, label in self.axis.ticks():
            self.add("line", x1=x, x2=x, y1=y, y2=y + 4, stroke="currentColor", stroke_width=0.8)
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
            ("poll", _("asks again")),
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
            dashes = {"stroke": WAIT, "stroke_width": 3, "stroke_dasharray": "2 4"}
            self.add("line", x1=x, x2=x + 18, y1=y, y2=y, **dashes)
        elif sign == "over":
            fill = f"url(#{self.id})"
            self.add("rect", x=x, y=y - 4, width=18, height=9, fill=fill, stroke=BAD)
        else:
            self._sign(sign, x + 9, y + 5 if sign == "wake" else y)


STYLE = (
    "@media (prefers-color-scheme: dark) {"
    " svg.timeline { color: #e6edf3; } .paper { fill: #0d1117; } }"
)


def width(text: str) -> float:
    """About how wide a small text is."""
    return sum(GLYPH if ord(letter) < 0x2E80 else 2 * GLYPH for letter in text)


def seconds(span: Span) -> str:
    """How long, to read."""
    length = (span.end - span.begin) / SECOND
    return f"{length:.1f} s" if length >= 0.1 else f"{length * 1000:.0f} ms"


def say(label: str) -> str:
    """A recorded label in the reader's language; what follows | is its number."""
    said, _bar, number = label.partition("|")
    return _(said) % {"quantity": number} if number else _(said)


def _name_of(lane: Lane) -> str:
    # The first to hold is called holder, and stands on top.
    return lane.name.replace("holder", "a")
