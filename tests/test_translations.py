"""Every text that a user can see is translated, and the compiled catalogue is up to date."""

import ast
import gettext
import re
import shutil
import subprocess
import sys
from pathlib import Path

from django.contrib import admin

from devservers.programs import required

ROOT = Path(__file__).resolve().parents[1]
CATALOGUES = [
    ROOT / package / "locale/zh_Hans/LC_MESSAGES/django.po" for package in (".", "locking")
]
OTHERS = shutil.ignore_patterns(".*", "__pycache__", "*.json", "var", "tests", "docs", "static")
OF_DJANGO = "# Of Django."
"""The comment of an entry that replaces a translation of Django's."""

Text = tuple[str, str]
"""The context, usually empty, and the text."""


def catalogue(*, without: str = "\n") -> dict[Text, str]:
    """Return the translation of each text, but not of the entries that begin so."""
    found = {}
    for source in CATALOGUES:
        for entry in source.read_text("utf-8").split("\n\n")[1:]:
            if not entry.startswith(without):
                parts = re.findall(r'^(msg\w+(?:\[0\])?) ((?:"[^\n]*"\n?)+)', entry, re.M)
                of = {
                    name: "".join(map(ast.literal_eval, text.splitlines())) for name, text in parts
                }
                chinese = of.get("msgstr", of.get("msgstr[0]", ""))
                found[of.get("msgctxt", ""), of["msgid"]] = chinese
    return found


def collect(copy: Path) -> str:
    """Write the catalogues of a copy of the sources again; return what the tool says."""
    required("xgettext")
    command = [sys.executable, "tools/translations.py"]
    return subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False).stdout


def test_every_text_is_translated_and_compiled(tmp_path: Path) -> None:
    """The library is installed alone, so its own catalogue has all of its texts.

    The control adds two texts.
    """
    copy = Path(shutil.copytree(ROOT, tmp_path / "copy", ignore=OTHERS))
    assert "all translated." in collect(copy)
    for source in CATALOGUES:
        for file in (source, source.with_suffix(".mo")):
            written = copy / file.relative_to(ROOT)
            assert written.read_bytes() == file.read_bytes(), "run: tools/translations.py"
    (copy / "locking/new.py").write_text('_("A new text")\n')
    (copy / "templates/new.html").write_text("{% load i18n %}{% translate 'Another' %}\n")
    said = collect(copy)
    assert ('"A new text"' in said, '"Another"' in said) == (True, True)


def test_admin_keeps_its_own_translations() -> None:
    """This catalogue precedes Django's: a text of ours with another meaning needs a context."""
    with (Path(admin.__file__).parent / "locale/zh_Hans/LC_MESSAGES/django.mo").open("rb") as file:
        theirs = gettext.GNUTranslations(file)
    ours = {text[1]: zh for text, zh in catalogue(without=OF_DJANGO).items() if not text[0]}
    shared = {text: theirs.gettext(text) for text in ours if theirs.gettext(text) != text}
    assert shared
    assert {text: ours[text] for text in shared} == shared
