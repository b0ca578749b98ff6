"""The timeline of a scenario: who thinks it holds the lock, its lease, the writes to the stock.

    draw(variant)                    # inline SVG for a page, in the page's colour
    draw(variant, length=length_of(variants))  # on the same scale as the others
    draw(variant, is_brief=True)     # without the magnified part and the legend
    draw(variant, alone=True)        # a file with its own background, light and dark
    story(variant)                   # the same events in words

There is one lane per process or server, whose bar is its belief, and below them the storage: the
keys that each store holds, and the writes to the stock. Time is linear; moments that cover each
other are repeated below on a magnified scale. Plain SVG without script or inline style, 360 wide:
legible on a telephone.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from django.conf import settings
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts import svg
from loadtest.charts.axis import LABEL, LEFT, RIGHT, WIDTH, Axis, Labels, anchored, width, wrapped
from loadtest.charts.svg import INK, tag
from loadtest.charts.timeline_data import WATCHDOG, Lane, Span, TimelineData, lane_title, translate
from loadtest.charts.timeline_signs import BAD, BELIEF, FAULT, WAITING, sign
from loadtest.charts.timeline_storage import BAR, BOLD, Panel
from loadtest.charts.timeline_story import story
from loadtest.kernel.history import SECOND
from loadtest.kernel.report import duration
from shop.sales.guards import guard_words

__all__ = ["draw", "heading", "length_of", "story"]

STYLE = (
    "@media (prefers-color-scheme: dark) {"
    " svg.timeline { color: #e6edf3; } .paper { fill: #0d1117; } }"
)
LAST = ("queue", "consumer", "consumer 2", "database")
"""The lanes below all others, in this order."""
UNMARKED = ("poll", "wake")
"""Signs without a label, too many to be magnified."""


def draw(
    variant: Mapping[str, Any],
    *,
    length: int = 0,
    title: str = "",
    is_brief: bool = False,
    alone: bool = False,
) -> SafeString:
    """Return the timeline of one variant; `length` is what the axis shows, in nanoseconds."""
    drawing = _Timeline(variant, title or heading(variant), length, is_brief=is_brief)
    return drawing.svg(alone=alone)


def length_of(variants: Iterable[Mapping[str, Any]]) -> int:
    """Return the nanoseconds that an axis must show for the longest of the variants."""
    return max((data.end - data.begin for data in map(TimelineData, variants)), default=0)


def assets() -> dict[str, SafeString]:
    """Return style and script of the playback, for a page that stands alone."""
    files = {"style": "css/timeline.css", "script": "js/timeline.js"}
    static = Path(settings.BASE_DIR) / "static"
    return {name: SafeString((static / file).read_text()) for name, file in files.items()}


def heading(variant: Mapping[str, Any]) -> str:
    """Return the first line of the timeline, which screen readers read too."""
    text = _("Repaired: %(guard)s") if variant["is_repaired"] else _("Broken: %(guard)s")
    return text % {"guard": guard_words(variant["guard"])}


class _Timeline(Panel):
    def __init__(
        self, variant: Mapping[str, Any], title: str, length: int, *, is_brief: bool
    ) -> None:
        data = TimelineData(variant)
        super().__init__(data, Axis(data.begin, length or data.end - data.begin))
        self.variant, self.title, self.is_brief = variant, title, is_brief
        self.id = f"over-{crc32(f'{title} {data.begin}'.encode()):x}"
        # The steps of a flash sale are in as many lanes that no sign covers another.
        has_steps = any(event["do"] == "step" for event in data.events)
        self.crowd = None if is_brief or has_steps else self._crowd()

    def _crowd(self) -> Axis | None:
        lanes = self.data.lanes.values()
        spans = [s for lane in lanes for s in (*lane.beliefs, *lane.waits, *lane.faults)]
        signs = [at for lane in lanes for at, name, _label in lane.marks if name not in UNMARKED]
        return self.axis.crowd(signs, [at for span in spans for at in (span.begin, span.end)])

    def svg(self, *, alone: bool) -> SafeString:
        for line in wrapped(self.title, 0.85 * WIDTH):
            self.y += LABEL + 1
            self.text(LEFT, self.y - 8, line, **BOLD)
        self._panel()
        if self.crowd:
            scale = self.axis.length / self.crowd.length
            self.axis, self.crowd, self.y = self.crowd, None, self.y + 18
            text = _("The marked part, magnified %(scale).0f times") % {"scale": scale}
            self.text(LEFT, self.y, text, **BOLD)
            self.y += 6
            self._panel()
        if not self.is_brief:
            self._legend()
        height = self.y + 4
        head = [tag("title", self.title), *self._described(), self._defs()]
        if alone:
            head.append(tag("style", STYLE))
            head.append(tag("rect", class_="paper", width=WIDTH, height=height, fill="#ffffff"))
        paper = {"color": INK, "width": WIDTH, "height": height} if alone else {}
        parts = [*head, *self.parts, *self.labels]
        return svg.frame(self.title, (WIDTH, height), parts, class_="timeline", **paper)

    def _described(self) -> list[SafeString]:
        """Return the alternative of the picture, which is the story in words."""
        sentences = [] if self.is_brief else story(self.variant)
        text = "\n".join(f"{one.time} {one.text}" for one in sentences).replace("。\n", "。")
        return [tag("desc", text)] if text else []

    def _defs(self) -> SafeString:
        stripes = svg.hatch(self.id, 6, tag("rect", width=3, height=6, fill=BAD))
        dots = svg.hatch(f"{self.id}-f", 5, tag("rect", width=2, height=5, fill=FAULT))
        return tag("defs", stripes + dots)

    # --- a panel: all lanes on one axis ---

    def _panel(self) -> None:
        before, self.parts, self.labels, top = [*self.parts, *self.labels], [], [], self.y
        self._lanes()
        self._ticks()
        places = {
            **{"data_first": self.since(self.axis.first), "data_length": self.axis.length},
            **{"data_left": LEFT, "data_right": RIGHT, "data_top": top, "data_bottom": self.y - 16},
        }
        self.parts.append(tag("g", SafeString("\n".join(self.labels))))
        self.parts = [*before, tag("g", SafeString("\n".join(self.parts)), **places)]
        self.labels = []

    def _lanes(self) -> None:
        """Draw the lanes, the storage and the overlaps."""
        top = self.y
        for lane in sorted(filter(self._shows, self.data.lanes.values()), key=_sort_key):
            self._lane(lane)
        self.draw_storage()
        if any(map(self.axis.clip, self.data.overlaps)):
            self._overlaps(top)
        if self.crowd:
            x, end = self.axis(self.crowd.first), self.axis(self.crowd.first + self.crowd.length)
            box = {"width": max(8.0, end - x), "y": top, "height": self.y + 6 - top, "rx": 3}
            dashes = {"stroke": "currentColor", "stroke_dasharray": "3 2"}
            self.parts.insert(0, tag("rect", x=x, fill="none", **box, **dashes))

    def _shows(self, lane: Lane) -> bool:
        spans = (*lane.beliefs, *lane.waits, *lane.faults)
        marks = any(at in self.axis for at, _sign, _label in lane.marks)
        return marks or any(map(self.axis.clip, spans)) or self.axis.first == self.data.begin

    def _lane(self, lane: Lane) -> None:
        y = self.y + 16
        self.text(LEFT, y - 5, lane_title(lane.name), **BOLD)
        shown = self.axis.clip(Span(self.data.begin, self.data.end))
        right = self.axis(shown.end) if shown else RIGHT
        self.line(LEFT, y + 8, right, y + 8, stroke=FAULT, stroke_opacity=0.35)
        for _span, part in self.visible(lane.waits):
            self.signs.add("wait")
            self.line(self.axis(part.begin), y + 8, self.axis(part.end), y + 8, **WAITING)
        for _span, part in self.visible(lane.beliefs):
            self.signs.add("belief")
            self.add("rect", **self.extent(part), y=y, height=BAR, rx=3, fill=BELIEF)
        labels = Labels(y + BAR + 12)
        texts = [*self._faults(lane, y), *self._marks(lane, y)]
        for x, text, name in texts:
            labels.add(x, text, fill=BAD if name in ("bad", "kill") else "currentColor")
        self.y = y + BAR + 6 + self.draw_labels(labels)

    def _faults(self, lane: Lane, y: float) -> Iterable[tuple[float, str, str]]:
        """Draw the faults; yield the places and texts of their labels."""
        for span, part in self.visible(lane.faults):
            extent = self.extent(part)
            if span.what == "pays":
                self.add(
                    "rect", **extent, y=y, height=BAR, rx=3, stroke="currentColor", fill="none"
                )
            elif span.what != "works":  # a process that works is not faulty
                box = {**extent, "y": y - 2, "height": BAR + 4, "rx": 2}
                self.add("rect", fill="#ffffff", fill_opacity=0.45, **box)
                line = {"stroke": "currentColor", "stroke_width": 0.8}
                self.add("rect", fill=f"url(#{self.id}-f)", fill_opacity=0.6, **line, **box)
            yield extent["x"] + extent["width"] / 2, f"{_(span.what)} {seconds(span)}", ""

    def _marks(self, lane: Lane, y: float) -> Iterable[tuple[float, str, str]]:
        """Draw the marks; yield the places and texts of their labels."""
        marks = [mark for mark in lane.marks if mark[0] in self.axis]
        if polls := [self.axis(at) for at, name, _label in marks if name == "poll"]:
            self.signs.add("poll")
            strokes = "".join(f"M{x:.1f} {y + 2:.1f}v12" for x in polls)
            self.add("path", d=strokes, stroke=BAD)
        # Writes are drawn above everything else, and above them the cross of a killed process,
        # which is the last mark of its lane.
        for at, name, label in sorted(marks, key=lambda mark: mark[1] in ("good", "bad", "kill")):
            if name == "poll":
                continue
            x = self.axis(at)
            self.signs.add(name)
            sign(self, name, x, y + BAR / 2, data_t=self.since(at))
            if label and self.is_labelled(at):
                yield x, translate(label), name

    def _overlaps(self, top: float) -> None:
        y = self.y + 6
        labels = Labels(y + 20)
        self.signs.add("over")
        for span, part in self.visible(self.data.overlaps):
            extent = self.extent(part)
            self.add("rect", **extent, y=top, height=y - top, fill=BAD, fill_opacity=0.12)
            self.add("rect", **extent, y=y, height=9, fill=f"url(#{self.id})", stroke=BAD)
            text = seconds(span)
            if len(self.data.overlaps) == 1:
                told = _("both think they hold it: %(seconds)s")
                if not self.data.has_lock:
                    told = _("both buy at once: %(seconds)s")
                text = told % {"seconds": text}
            elif extent["width"] < width(text):
                continue
            x = extent["x"] + extent["width"] / 2
            labels.add(x, text, fill=BAD, font_weight="bold")
        self.y = y + 14 + self.draw_labels(labels)

    def _ticks(self) -> None:
        y = self.y + 4
        self.line(LEFT, y, RIGHT, y, stroke_width=0.8)
        for x, label in self.axis.ticks(self.data.begin):
            self.line(x, y, x, y + 4, stroke_width=0.8)
            x, anchor = anchored(x, label)
            self.text(x, y + 14, label, text_anchor=anchor)
        self.y = y + 20

    def _legend(self) -> None:
        x, has_lock = float(LEFT), self.data.has_lock
        for name, words in (
            ("belief", _("thinks it holds the lock") if has_lock else _("buys")),
            ("lease", _("key in the store")),
            ("wait", _("waits")),
            ("over", _("both think they hold it") if has_lock else _("both buy at once")),
            ("good", _("write accepted")),
            ("bad", _("write refused")),
            ("wake", _("woken")),
            ("poll", _("polls")),
        ):
            if name not in self.signs:
                continue
            wide = 22 + width(words) + 10
            if x + wide > WIDTH:
                x, self.y = float(LEFT), self.y + 16
            sign(self, name, x + 9, self.y + 6)
            self.text(x + 22, self.y + 10, words, text_anchor="start")
            x += wide
        self.y += 18


def seconds(span: Span) -> str:
    """Return the length of a span as text."""
    return duration((span.end - span.begin) / SECOND)


def _sort_key(lane: Lane) -> tuple[bool, str, int]:
    """Sort processes by name; servers and staff keep the order of their first event after them."""
    if not lane.name.startswith(("buyer", "holder", "waiter", WATCHDOG)):
        return True, "", LAST.index(lane.name) if lane.name in LAST else -1
    actor = lane.name.removeprefix(WATCHDOG)
    return False, actor.replace("holder", "a"), actor != lane.name  # the first holder comes first
