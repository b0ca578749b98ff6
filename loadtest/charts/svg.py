"""Plain SVG, with neither script nor inline style: an element, a whole picture, its pixels."""

from collections.abc import Iterable

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

FONT = "system-ui, 'DejaVu Sans', 'WenQuanYi Zen Hei', sans-serif"
INK = "#1f2328"
"""On white paper; in a page the ink is the page's own."""


def tag(name: str, text: object = "", **attributes: object) -> SafeString:
    """An element; `text` is escaped unless it is safe, numbers get one decimal."""
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


def picture(
    said: str, size: tuple[float, float], parts: Iterable[SafeString], **attributes: object
) -> SafeString:
    """The parts in a frame; `said` is what a screen reader says of it."""
    frame = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": f"0 0 {size[0]:g} {size[1]:g}",
        "role": "img",
        "aria_label": said,
        "font_family": FONT,
        "fill": "currentColor",
    }
    inside = format_html_join("\n", "{}", ((part,) for part in parts))
    return tag("svg", inside, **{**frame, **attributes})


def png(svg: SafeString, width: int) -> bytes:
    """A picture that stands alone as pixels, so many wide."""
    import resvg_py  # only here: it is a megabyte

    return bytes(resvg_py.svg_to_bytes(svg_string=str(svg), width=width))
