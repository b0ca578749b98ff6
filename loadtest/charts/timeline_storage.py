"""The storage of a timeline: the keys that each store holds, and every write to the stock row."""

from collections.abc import Iterable

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from loadtest.charts.axis import LABEL, LEFT, RIGHT, Axis, Labels, S, width
from loadtest.charts.svg import Drawing, tag
from loadtest.charts.timeline_data import Span, StockWrite, TimelineData, lane_title
from loadtest.charts.timeline_signs import BAD, FAULT, KEY, sign
from loadtest.kernel.holds import Lease

BAR, SMALL, TEXT = 16, 11, 12
BOLD = {"font_size": TEXT, "font_weight": "bold", "text_anchor": "start"}
HIGH = 14
MAX_LABELS = 4
"""Keys of one store whose labels may stand below them; more would hide each other."""
STORES = {
    **{"redis": "Redis", "redlock": "RedLock", "zookeeper": "ZooKeeper", "mysql_row": "MySQL"},
    **dict.fromkeys(("setnx", "setnx_expire", "set_px"), "Redis"),
}


class Panel(Drawing):
    """A part of a timeline on one axis, with the storage below the processes."""

    def __init__(self, data: TimelineData, axis: Axis) -> None:
        super().__init__()
        self.data, self.axis = data, axis
        self.labels: list[SafeString] = []
        """Texts, which are drawn above everything else."""
        self.crowd: Axis | None = None
        """The part of the axis that a second panel magnifies, and whose labels it shows."""
        self.signs: set[str] = set()
        self.y = 8.0

    def text(self, x: float, y: float, text: str, **attributes: object) -> None:
        """Add a small text, by default centred."""
        place = {"x": float(x), "y": y, "font_size": SMALL, "text_anchor": "middle"}
        self.labels.append(tag("text", text, **{**place, **attributes}))

    def draw_labels(self, labels: Labels) -> float:
        """Draw texts that do not cover each other; return their height."""
        placed = labels.placed()
        for one in placed:
            if one.line is not None:
                thin = {"stroke_width": 0.6, "stroke_opacity": 0.6}
                self.line(one.line, labels.top - 11, one.line, one.y, **thin)
            self.text(one.x, one.y, one.text, text_anchor=one.anchor, **one.attributes)
        return max((one.y - labels.top + LABEL for one in placed), default=0)

    def since(self, at: int) -> int:
        """Return the nanoseconds since the first event."""
        return at - self.data.begin

    def extent(self, span: Span | Lease) -> dict[str, float]:
        """Return the place of a span that the axis shows."""
        x = self.axis(span.begin)
        wide = max(1.0, self.axis(span.end) - x)
        return {"x": x, "width": wide, "data_t": self.since(span.begin)}

    def visible(self, spans: Iterable[S]) -> Iterable[tuple[S, S]]:
        """Yield each span of which the axis shows a part, and that part."""
        return ((span, part) for span in spans if (part := self.axis.clip(span)))

    def is_labelled(self, at: int) -> bool:
        """Return True for a moment that the axis shows and no other panel magnifies."""
        return at in self.axis and not (self.crowd and at in self.crowd)

    def draw_storage(self) -> None:
        """Draw a row for each store, and one for the stock."""
        for store in dict.fromkeys(lease.store for lease in self.data.leases):
            leases = [one for one in self.data.leases if one.store == store]
            if any(map(self.axis.clip, leases)):
                self._keys(_store_title(store), leases)
        if any(write.at in self.axis for write in self.data.stock):
            self._stock()

    def _row(self, title: str) -> float:
        """Begin a row; return its middle."""
        self.text(LEFT, self.y + 9, title, **BOLD)
        return self.y + 21

    def _keys(self, title: str, leases: list[Lease]) -> None:
        middle = self._row(title)
        labels = Labels(middle + HIGH / 2 + LABEL)
        self.signs.add("lease")
        for lease, part in self.visible(leases):
            box = self.extent(part)
            self.add("rect", **box, y=middle - HIGH / 2, height=HIGH, rx=2, **KEY)
            centre, text = (
                box["x"] + box["width"] / 2,
                f"{lane_title(lease.holder)} {self.data.token_of(lease)}",
            )
            if width(text) < box["width"]:
                self.text(centre, middle + 3.5, text.strip())
            elif len(leases) <= MAX_LABELS and self.is_labelled(lease.begin):
                labels.add(centre, text.strip())
            if (how := end_of(lease)) and self.is_labelled(lease.end):
                labels.add(self.axis(part.end), how, fill=BAD)
        self.y = middle + 12 + self.draw_labels(labels)

    def _stock(self) -> None:
        middle = self._row(_("stock row"))
        self.line(LEFT, middle, RIGHT, middle, stroke=FAULT, stroke_opacity=0.35)
        labels = Labels(middle + 16)
        for write in self.data.stock:
            if write.at not in self.axis:
                continue
            x, shape = self.axis(write.at), "stock-bad" if write.is_bad else "stock-good"
            sign(self, shape, x, middle, data_t=self.since(write.at))
            if self.is_labelled(write.at):
                is_last = write is self.data.stock[-1]
                bold = {"fill": BAD, "font_weight": "bold"} if write.is_bad else {}
                labels.add(x, stock_text(write, is_last=is_last), **bold)
        self.y = middle + 12 + self.draw_labels(labels)


def end_of(lease: Lease) -> str:
    """Return how a lease ended, in the active language; nothing if its holder released it."""
    ends = {"expired": _("expired"), "deleted": _("deleted"), "lost": _("lost")}
    return {**ends, "stays": _("no expiry")}.get(lease.how, "")


def stock_text(write: StockWrite, *, is_last: bool = True) -> str:
    """Return what a write did to the row: "1 → 0", and why it is bad."""
    if write.refused is not None:
        why = _(write.refused) if write.refused else _("row changed")
        if why[0].isdigit():
            why = _("epoch %(epoch)s") % {"epoch": why}
        return _("%(why)s: refused") % {"why": why}
    change = "" if write.after is None else f"{write.before} → {write.after}"
    if write.sold > write.initial and is_last:
        count = _("%(sold)d of %(stock)d sold") % {"sold": write.sold, "stock": write.initial}
        return _("%(change)s: %(count)s") % {"change": change, "count": count} if change else count
    if write.uncounted and write.sold <= write.initial:
        return _("%(change)s: not counted") % {"change": change}
    return change


def _store_title(store: str) -> str:
    kind, _of, actor = store.partition(" of ")
    if actor:
        return _("memory of %(actor)s") % {"actor": _(actor)}
    return _("stored in %(store)s") % {"store": STORES.get(kind, _("the database"))}
