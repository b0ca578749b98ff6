"""Plain SVG without script or inline style: elements, drawings and their pixels."""

from collections.abc import Iterable

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

FONT = "system-ui, 'DejaVu Sans', 'WenQuanYi Zen Hei', sans-serif"
INK = "#1f2328"
"""The colour of text on white paper; a chart in a page inherits the page's colour."""


def tag(name: str, text: object = "", **attributes: object) -> SafeString:
    """Return an element; `text` is escaped unless it is safe, numbers get one decimal."""
    inside = format_html_join(
        "",
        ' {}="{}"',
        (
            (
                key.rstrip("_").replace("_", "-"),
                f"{value:.1f}" if isinstance(value, float) else value,
            )
            for key, value in attributes.items()
        ),
    )
    return format_html("<{}{}>{}</{}>", name, inside, text, name)


class Drawing:
    """Elements that are added one after the other."""

    def __init__(self) -> None:
        self.parts: list[SafeString] = []

    def add(self, name: str, text: object = "", **attributes: object) -> None:
        """Add an element."""
        self.parts.append(tag(name, text, **attributes))

    def text(self, x: float, y: float, text: str, **attributes: object) -> None:
        """Add a text."""
        self.add("text", text, x=x, y=y, **attributes)

    def line(self, x1: float, y1: float, x2: float, y2: float, **attributes: object) -> None:
        """Add a line in the colour of the text."""
        self.add("line", x1=x1, x2=x2, y1=y1, y2=y2, **{"stroke": "currentColor", **attributes})


def hatch(name: str, size: int, *parts: SafeString) -> SafeString:
    """Return the definition of a slanted pattern, which fills as url(#name)."""
    slant = {"patternUnits": "userSpaceOnUse", "patternTransform": "rotate(45)"}
    return tag("pattern", SafeString("".join(parts)), id=name, width=size, height=size, **slant)


def frame(
    label: str, size: tuple[float, float], parts: Iterable[SafeString], **attributes: object
) -> SafeString:
    """Return the SVG that holds the parts; screen readers read its label."""
    defaults = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {size[0]:g} {size[1]:g}",
        "role": "img",
        "aria_label": label,
        "font_family": FONT,
        "fill": "currentColor",
    }
    inside = format_html_join("\n", "{}", ((part,) for part in parts))
    return tag("svg", inside, **{**defaults, **attributes})


def png(svg: SafeString, width: int) -> bytes:
    """Return an SVG with its own background as a PNG, `width` pixels wide."""
    import resvg_py  # imported here because it is large

    return bytes(resvg_py.svg_to_bytes(svg_string=str(svg), width=width))
