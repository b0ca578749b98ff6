"""Where the elements of a drawn timeline are, compared with the time that they stand for."""

from __future__ import annotations

from xml.etree import ElementTree

from loadtest.charts.axis import LEFT, RIGHT

SVG = "{http://www.w3.org/2000/svg}"


def misplaced(svg: str) -> list[str]:
    """Return what is more than a pixel from its linear time, magnified or not."""
    found = []
    tree = ElementTree.fromstring(svg)  # noqa: S314 - our own
    panels = [one for one in tree.iter() if one.get("data-length")]
    assert panels, "the chart has an axis"
    for panel in panels:
        first, length = int(panel.get("data-first", 0)), int(panel.get("data-length", 0))
        for one in panel.iter():
            if at := one.get("data-t"):
                x = float(one.get("x") or one.get("transform", "").split("(")[1].split()[0])
                if abs(x - LEFT - (RIGHT - LEFT) * (int(at) - first) / length) > 1:
                    found.append(ElementTree.tostring(one, "unicode"))
    return found
