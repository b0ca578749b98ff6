"""Texts use plain words and are translated: no banned phrase in either language.

The phrases are in banned_phrases.txt: private metaphors, and sentences that were replaced once and
must not return.
"""

import ast
import configparser
import gettext
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from django.contrib import admin

from devservers.programs import required

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "loadtest",
    "verification",
    "waiting_room",
    "shop",
    "inventory",
    "locking",
    "devservers",
    "tools",
    "deploy",
)
PRODUCTION = [file for package in PACKAGES for file in (ROOT / package).rglob("*.py")]
SHOWN = [
    *(ROOT / "templates").rglob("*.*"),
    *(ROOT / "static").glob("*/*.js"),
    *(ROOT / "loadtest").rglob("en.toml"),
]
DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
HISTORY = {ROOT / "CHANGELOG.md", *(ROOT / "docs/adr").glob("*.md")}
"""These quote names and texts that are gone."""
FILES = {
    "code": (PRODUCTION, 200),
    "templates and scripts": (SHOWN, 30),
    "docs": ([file for file in DOCS if file not in HISTORY], 50),
}
"""By kind: the files, and more than how many there must be."""

LISTS = configparser.ConfigParser(allow_no_value=True, delimiters=("\t",))
LISTS.optionxform = str  # type: ignore[assignment, method-assign]
LISTS.read(ROOT / "tests/banned_phrases.txt", "utf-8")
HALF_WIDTH = re.compile(
    r"[\u4e00-\u9fff）”][,:;!?](?!\d|//)|[。，：；！？] (?!·)|[，。：；]\s*[，。：；]"
)
"""Latin punctuation behind Chinese, a space behind Chinese punctuation, or two marks in a row."""
YOU = re.compile(r"你")
"""The shop says 您."""


WORDS, PHRASES = ("|".join(map(re.escape, LISTS[name])) for name in ("words", "phrases"))
BANNED_WORD = re.compile(rf"\b(?:{WORDS})\b", re.IGNORECASE)
BANNED_PHRASE = re.compile(rf"(?<!\w)(?:{PHRASES})")


def banned(text: str) -> list[str]:
    """Return the banned words and phrases of a text, also those that span lines."""
    text = " ".join(text.replace("#", " ").split())
    return BANNED_WORD.findall(text) + BANNED_PHRASE.findall(text)


def banned_chinese(text: str) -> list[str]:
    """Return what no Chinese text of the shop contains."""
    found = [word for word in LISTS["chinese"] if word in text]
    found += YOU.findall(text)
    return found + [match[0] for match in HALF_WIDTH.finditer(text)]


@pytest.mark.parametrize("kind", FILES)
def test_files_use_plain_words(kind: str) -> None:
    files, least = FILES[kind]
    assert len(files) > least
    found = {file.relative_to(ROOT): banned(file.read_text("utf-8")) for file in files}
    assert {file: texts for file, texts in found.items() if texts} == {}


def test_english_of_the_catalogue_is_plain() -> None:
    assert [text for _, text in catalogue() if banned(text)] == []


def test_chinese_of_the_catalogue_is_plain() -> None:
    found = {text: wrong for text, zh in catalogue().items() if (wrong := banned_chinese(zh))}
    assert found == {}, "see the django.po files"


def test_chinese_docs_are_plain() -> None:
    pages = [file for file in DOCS if "zh-CN" in file.name]
    assert pages
    prose = {
        file.name: re.sub(r"```.*?```|`[^`]*`", "码", file.read_text(), flags=re.S)
        for file in pages
    }
    prose |= {str(file): file.read_text("utf-8") for file in ROOT.glob("loadtest/**/zh-hans.toml")}
    assert {name: wrong for name, text in prose.items() if (wrong := banned_chinese(text))} == {}


FOUND = {
    "Ask whoever holds it.": ["whoever"],
    "The shop has to catch its\n    breath": ["catch its breath"],
    "no 'x'; there are: a, b": ["there are:"],
    "However, it holds. A knockout.": [],
}
FOUND_IN_CHINESE = {
    "同一表单只算一次，你": ["表单", "你"],
    "买家: 3": ["家:"],
    "不收款。 时间": ["。 "],
    "您好！请付款（10 元）：谢谢。12:30 开始，库存 20, https://例子": [],
}


def test_banned_texts_are_found() -> None:
    """The control."""
    assert {text: banned(text) for text in FOUND} == FOUND
    assert {text: banned_chinese(text) for text in FOUND_IN_CHINESE} == FOUND_IN_CHINESE


SHOP_WORDS = re.compile(
    r"(?<![a-z])(?:sales?|stocks?|order[ _]numbers?|buyers?|purchas\w+|inventory|shops?|customers?"
    r"|overs(?:ell|old)\w*|naive writes?|write strateg\w+)(?![a-z])"
    r"|[售买购]|库存|订单|下单|秒杀|商品",
    re.IGNORECASE,
)


def test_library_does_not_mention_the_shop() -> None:
    """Nor what its locks guard."""
    files = [
        file for end in ("py", "html", "po", "lua") for file in (ROOT / "locking").rglob(f"*.{end}")
    ]
    found = {(file.name, *SHOP_WORDS.findall(file.read_text("utf-8"))) for file in files}
    # An applied migration keeps the name that the field had.
    assert {one for one in found if len(one) > 1} == {("0001_initial.py", "write strategy")}
    assert SHOP_WORDS.findall("from shop import Sale; read_stock(order_number); 现有库存") == [
        *("shop", "Sale", "stock", "order_number", "库存")
    ]


# --- the catalogues -----------------------------------------------------------------------------

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
