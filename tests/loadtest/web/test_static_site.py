"""The exported course: complete, small, without a server, and never over another's files."""

import re
from contextlib import chdir
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test.utils import override_settings

from loadtest.game.levels import LEVELS
from loadtest.scenarios.course import COURSE
from loadtest.web.static_site import MADE_BY

LANGUAGES = [language for language, _name in settings.LANGUAGES]
LARGEST = 4 * 2**20


class Page(HTMLParser):
    """The ids and links of a page, and what the policy of the shop's pages forbids."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.inline = set[str](), list[str](), list[str]()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.add(found.get("id") or "")
        self.links += [value for name in ("href", "src", "action") if (value := found.get(name))]
        handlers = [name for name in found if name.startswith("on") or name == "style"]
        is_inline = tag == "style" or (tag == "script" and "src" not in found)
        self.inline += [*handlers, *([tag] if is_inline else [])]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, made without a database, with the names that collectstatic gives to files.

    It replaces an older one in the current folder.
    """
    folder = tmp_path_factory.mktemp("course")
    (folder / "site").mkdir()
    for name in (MADE_BY, "old.html"):
        (folder / "site" / name).touch()
    with override_settings(STATIC_ROOT=folder / "collected"), chdir(folder / "site"):
        call_command("collectstatic", interactive=False, verbosity=0)
        call_command("learn", "export", ".", stdout=StringIO())
    return folder / "site"


def test_every_link_and_file_exists(site: Path) -> None:
    pages = {file: Page(file.read_text("utf-8")) for file in site.rglob("*.html")}
    assert len(pages) == 1 + len(LANGUAGES) * (3 + len(COURSE) + len(LEVELS))
    for file, page in pages.items():
        assert page.links, file
        for link in page.links:
            address = urlsplit(link)
            assert not re.match("/|[a-z]+:", link), f"{file}: {link}"
            target = (file.parent / address.path).resolve() if address.path else file
            assert target.is_file(), f"{file}: {link}"
            assert not address.fragment or address.fragment in pages[target].ids, f"{file}: {link}"
    names = [{file.name for file in (site / language).iterdir()} for language in LANGUAGES]
    assert names[0] == names[1]


def test_site_is_small_and_has_nothing_inline(site: Path) -> None:
    files = [file for file in site.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < LARGEST
    assert all(re.search(r"\.[0-9a-f]{12}\.", file.name) for file in site.glob("static/**/*.*s"))
    for file in (one for one in files if one.suffix in (".html", ".js")):
        text = file.read_text("utf-8")
        assert not re.search(r"testserver|127\.0\.0\.1|csrfmiddlewaretoken|hx-post", text), file
        assert file.suffix == ".js" or Page(text).inline == [], file
    assert "中文课程" in (site / "index.html").read_text("utf-8")
    assert "make demo" in (site / "en" / "fence.html").read_text("utf-8")


def test_only_an_export_is_replaced(site: Path, tmp_path: Path) -> None:
    kept = tmp_path / "thesis.txt"
    kept.write_text("mine")
    with pytest.raises(CommandError, match="not empty, and no export has made it"):
        call_command("learn", "export", str(tmp_path))
    with pytest.raises(CommandError, match=re.escape(str(kept))):
        call_command("learn", "export", str(kept))
    assert kept.read_text() == "mine"
    assert (site / MADE_BY).exists()
    assert not (site / "old.html").exists()
