"""The part of a page that a command writes: between `<!-- name -->` and `<!-- /name -->`."""

from pathlib import Path


def around(file: Path, name: str) -> tuple[str, str]:
    """What stands before that part and after it, marks included; ValueError without these."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = file.read_text().partition(start)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{file} has no place between {start.strip()} and {end}")
    return before + start, end + after


def write(file: Path, name: str, text: str) -> None:
    """Replace that part."""
    before, after = around(file, name)
    file.write_text(before + text + after)
