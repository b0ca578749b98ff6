"""The texts of the course in the active language: en.toml and zh-hans.toml have the same keys."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from django.utils.translation import get_language

FOLDER = Path(__file__).parent


def texts() -> dict[str, Any]:
    """Return the texts in the active language, by kind and name."""
    return _read(get_language() or "en")


@cache
def _read(language: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{language}.toml").read_text("utf-8"))


@dataclass(frozen=True, kw_only=True)
class Told:
    """The base of what the course tells about."""

    kind: ClassVar[str]
    name: str

    @property
    def texts(self) -> dict[str, str]:
        """The texts of its kind and name."""
        found: dict[str, str] = texts()[self.kind][self.name]
        return found

    @property
    def title(self) -> str:
        """The title in the active language."""
        return self.texts["title"]
