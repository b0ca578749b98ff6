"""The generated part of a page, between `<!-- name -->` and `<!-- /name -->`."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def around(file: Path, name: str) -> tuple[str, str]:
    """Return the text before and after the part, with its marks; ValueError if there is none."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = file.read_text().partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file} has no place between {start.strip()} and {end}")
    return before + start, end + after


def table(names: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    names = list(names)
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def write(file: Path, name: str, text: str) -> None:
    """Replace the part."""
    before, after = around(file, name)
    file.write_text(before + text + after)


def versions(found: dict[str, Any]) -> str:
    """Return the versions of a report in one line, without platform and the system's suffixes."""
    line = ", ".join(f"{name} {value}" for name, value in found.items() if name != "platform")
    return re.sub(r"-MariaDB[^ ,]*| \(.*?\)", "", line)
