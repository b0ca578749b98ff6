"""The course and its game as files, which need no server: the same views under other addresses.

Addresses are relative, so that the files work in any folder of a web server and from file://.
Templates leave out what needs the demo where `request.is_static` is true.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from django.conf import settings
from django.contrib.staticfiles import finders
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.test import RequestFactory
from django.test.utils import override_settings
from django.urls import get_script_prefix, path, resolve, reverse, set_script_prefix
from django.utils import translation

from loadtest.game.levels import LEVELS, recorded, sentences
from loadtest.scenarios.course import COURSE
from loadtest.web import game, learn, questions
from shop.platform.staticfiles import Storage

MADE_BY = ".learn-export"
"""The file that marks a folder which the next export may replace."""


class UsedFiles(Storage):
    """Remembers which files the pages use."""

    used: ClassVar[set[str]] = set()

    def url(self, name: str, force: bool = False) -> str:
        """Return the relative address of a file."""
        found = str(super().url(name, force)).removeprefix(self.base_url)
        self.used.add(found)
        return f"../static/{found}"


def recording(request: HttpRequest, name: str) -> HttpResponse:
    """Return a script with all states of a level as HTML, and the moves between them.

    A state is a list of lines, each of which is in the script once.
    """
    lines: dict[str, int] = {}

    def numbers(view: dict[str, Any]) -> list[int]:
        part = render_to_string("learn/_game.html", game.page_context(view), request)
        inside = part.strip().partition("\n")[2].rpartition("</div>")[0]
        return [lines.setdefault(line, len(lines)) for line in inside.splitlines() if line]

    variants = [
        {"states": [numbers(view) for view in half["states"]], "moves": half["moves"]}
        for half in recorded(name)
    ]
    found = {"lines": [*lines], "sentences": sentences(), "variants": variants}
    words = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    return HttpResponse(f"globalThis.recordedGame = {words};\n")


urlpatterns = [
    path("index.html", learn.course, name="learn"),
    path("grid.html", learn.grid, name="learn-grid"),
    path("questions.html", questions.questions, name="learn-questions"),
    path("play-<slug:name>.html", game.play, name="game"),
    path("play-<slug:name>.js", recording, name="game-recording"),
    path("<slug:name>.html", learn.lesson, name="learn-step"),
]


def export(folder: Path) -> int:
    """Write the site into a folder and return its size in bytes. Raise OSError."""
    # A file raises NotADirectoryError here.
    if folder.exists() and not (folder / MADE_BY).exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty, and no export has made it.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)  # the current one remains
    (folder / MADE_BY).touch()
    with _relative_addresses():
        UsedFiles.used.clear()
        for language, _name in settings.LANGUAGES:
            (folder / language).mkdir()
            with translation.override(language):
                for name in _names():
                    (folder / language / name).write_bytes(_content(f"/{name}"))
        index = render_to_string("learn/static_index.html", {"languages": settings.LANGUAGES})
        (folder / "index.html").write_text(index, "utf-8")
        for used in UsedFiles.used:
            copy = folder / "static" / used
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(finders.find(used) or Path(settings.STATIC_ROOT) / used, copy)
    return sum(one.stat().st_size for one in folder.rglob("*") if one.is_file())


@contextmanager
def _relative_addresses() -> Iterator[None]:
    """Make the addresses of pages and static files relative to a page of the site."""
    before = get_script_prefix()
    backend = f"{UsedFiles.__module__}.{UsedFiles.__qualname__}"
    storages = settings.STORAGES | {"staticfiles": {"BACKEND": backend}}
    with override_settings(ROOT_URLCONF=__name__, STATIC_URL="/static/", STORAGES=storages):
        set_script_prefix("./")
        try:
            yield
        finally:
            set_script_prefix(before)


def _names() -> list[str]:
    """Return the name of each file in the folder of a language."""
    steps = [("learn-step", [step.name]) for step in COURSE]
    levels = [(page, [name]) for page in ("game", "game-recording") for name in LEVELS]
    pages = [*((page, []) for page in ("learn", "learn-grid", "learn-questions")), *steps, *levels]
    return [reverse(page, args=args).removeprefix("./") for page, args in pages]


def _content(address: str) -> bytes:
    """Return the response of the view behind an address."""
    request = RequestFactory().get(address)
    request.is_static = True  # type: ignore[attr-defined]
    request.resolver_match = found = resolve(address)
    response: HttpResponse = found.func(request, *found.args, **found.kwargs)
    return response.content
