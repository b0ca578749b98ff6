"""Every text that a user can see is translated, and the compiled catalogue is up to date."""

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib import admin
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parents[1]
CATALOGUES = [
    ROOT / package / "locale/zh_Hans/LC_MESSAGES/django.po" for package in (".", "locking")
]
MARKS = {"_": 0, "gettext": 0, "gettext_lazy": 0, "gettext_noop": 0}
MARKS |= {"ngettext": 0, "ngettext_lazy": 0, "pgettext": 1, "pgettext_lazy": 1}
"""The functions that mark a text, with the position of the text among their arguments."""

Text = tuple[str, str]
"""The context, usually empty, and the text."""


def texts_of(source: str) -> Iterator[Text]:
    """Yield the texts that a Python source marks for translation."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        words = [word.value for word in node.args if isinstance(word, ast.Constant)]
        if name in MARKS and len(words) > MARKS[name]:
            yield "".join(words[: MARKS[name]]), words[MARKS[name]]


def texts_of_template(template: str) -> Iterator[Text]:
    """Yield the texts of a template, which Django converts for xgettext."""
    word = r"""u?(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")"""
    for call in re.findall(rf"(?:\w*gettext|_)\({word}(?:, {word})*", templatize(template)):
        yield from texts_of(call.replace("\n", "\\n") + ")")


def catalogue() -> dict[Text, str]:
    """Return the translation of each text in the source catalogues."""
    found: dict[Text, str] = {}
    for source in CATALOGUES:
        found |= entries_of(source)
    return found


def entries_of(source: Path) -> dict[Text, str]:
    found = {}
    for entry in source.read_text("utf-8").split("\n\n")[1:]:
        parts = re.findall(r'^(msg\w+(?:\[0\])?) ((?:"[^\n]*"\n?)+)', entry, re.M)
        values = {name: "".join(map(ast.literal_eval, text.splitlines())) for name, text in parts}
        found[values.get("msgctxt", ""), values["msgid"]] = values.get(
            "msgstr", values.get("msgstr[0]")
        )
    return found


def texts_in(package: str) -> Iterator[tuple[Path, Text]]:
    """Yield each text of the package's modules and templates."""
    for file in (ROOT / package).rglob("*.py"):
        yield from ((file, text) for text in texts_of(file.read_text("utf-8")))
    templates = (ROOT / package).rglob
    for file in [*templates("*.html"), *templates("*.txt")]:
        yield from ((file, text) for text in texts_of_template(file.read_text("utf-8")))


@pytest.mark.parametrize("source", CATALOGUES, ids=["project", "library"])
def test_every_text_is_translated(source: Path) -> None:
    """The library is installed alone, so its own catalogue has all of its texts."""
    known = {text for text, chinese in entries_of(source).items() if chinese}
    is_library = source == CATALOGUES[1]
    shop = ["loadtest", "waiting_room", "shop", "inventory", "templates"]
    packages = ["locking"] if is_library else shop
    used = [found for package in packages for found in texts_in(package)]
    assert len(used) > (50 if is_library else 200), "the functions above find nothing"
    missing = {(file.name, text) for file, text in used if text not in known}
    assert missing == set(), "run: tools/translations.py"


@pytest.mark.parametrize("source", CATALOGUES, ids=["project", "library"])
def test_compiled_catalogue_is_up_to_date(source: Path) -> None:
    with source.with_suffix(".mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for (context, text), chinese in entries_of(source).items():
        translated = compiled.pgettext(context, text) if context else compiled.gettext(text)
        plural = compiled.ngettext(text, text, 1)
        assert chinese in (translated, plural), f"{text!r}; run: tools/translations.py"


def test_admin_keeps_its_own_translations() -> None:
    """This catalogue precedes Django's: a text of ours with another meaning needs a context."""
    with (Path(admin.__file__).parent / "locale/zh_Hans/LC_MESSAGES/django.mo").open("rb") as file:
        theirs = gettext.GNUTranslations(file)
    packages = ("locking", "loadtest", "waiting_room", "shop", "inventory", "templates")
    used = {text for package in packages for _, text in texts_in(package)}
    ours = {text[1]: zh for text, zh in catalogue().items() if text in used and not text[0]}
    shared = {text: theirs.gettext(text) for text in ours if theirs.gettext(text) != text}
    assert shared
    assert {text: ours[text] for text in shared} == shared


MARKED = {
    "{% translate 'd' context 'days' %}": ("days", "d"),
    '{% translate "It\'s (a)" %}': ("", "It's (a)"),
    "{% blocktranslate with a=b %}{{ a }} left{% endblocktranslate %}": ("", "%(a)s left"),
    "{% blocktranslate trimmed %}\n  a\n  b\n{% endblocktranslate %}": ("", "a b"),
    "{% include 'x' with word=_('Buy') %}": ("", "Buy"),
}
MARKED_IN_PYTHON = {
    "x = f(gettext_lazy('a' 'b'))": ("", "ab"),
    "ngettext('%d x', '%d xs', n)": ("", "%d x"),
    "pgettext('days', 'd')": ("days", "d"),
}


def test_marked_texts_are_found() -> None:
    """The control."""
    assert {text: next(texts_of_template(text)) for text in MARKED} == MARKED
    assert {text: next(texts_of(text)) for text in MARKED_IN_PYTHON} == MARKED_IN_PYTHON
