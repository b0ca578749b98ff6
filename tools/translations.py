"""Update the catalogues: collect the texts of the code, list the untranslated ones, compile.

    .venv/bin/python tools/translations.py

Exit code 1 while a text is untranslated. Needs Debian's gettext.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CATALOGUES = [
    ROOT / package / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"
    for package in (".", "locking")
]
"""The library has its own; texts outside of it are in the first."""
KEPT = "# Of Django."
"""The comment of an entry that none of our texts needs: Django 5.2 translates it badly, not at all,
or with 你 where the shop says 您."""
HEADER = """# Simplified Chinese.
msgid ""
msgstr ""
"Language: zh_Hans\\n"
"MIME-Version: 1.0\\n"
"Content-Type: text/plain; charset=UTF-8\\n"
"Content-Transfer-Encoding: 8bit\\n"
"Plural-Forms: nplurals=1; plural=0;\\n"
"""
COLLECT = ["makemessages", "-l", "zh_Hans", "--no-obsolete", "--no-location", "--no-wrap"]
NO_GUESSES = ("--clear-fuzzy", "--empty", "--clear-previous")
IGNORED = [word for folder in (".venv", "tests", "tools", "var") for word in ("--ignore", folder)]


def run(*command: str | Path) -> None:
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def main() -> int:
    kept = [entry for entry in entries_of(CATALOGUES[0]) if entry.startswith(KEPT)]
    run(sys.executable, "manage.py", *COLLECT, *IGNORED)
    count, missing = 0, []
    for catalogue in CATALOGUES:
        # Without the guesses of gettext, which reuses the translation of a similar text.
        run("msgattrib", *NO_GUESSES, "--no-wrap", "-o", catalogue, catalogue)
        entries = entries_of(catalogue) + (kept if catalogue == CATALOGUES[0] else [])
        catalogue.write_text("\n\n".join([HEADER.rstrip(), *entries]) + "\n", "utf-8")
        run("msgfmt", "--check-format", "-o", catalogue.with_suffix(".mo"), catalogue)
        count += len(entries)
        missing += [entry for entry in entries if entry.endswith('""')]
    print("\n\n".join(missing) or f"{count} texts, all translated.")
    return 1 if missing else 0


def entries_of(catalogue: Path) -> list[str]:
    """Return the entries of a catalogue without its header."""
    return catalogue.read_text("utf-8").strip().split("\n\n")[1:]


if __name__ == "__main__":
    sys.exit(main())
