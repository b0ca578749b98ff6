"""Front-end files: copied ones unchanged and licensed, templates without anything inline."""

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENDOR = ROOT / "static" / "vendor"
# Not those to take away or to mail, which carry everything with them.
TEMPLATES = sorted(
    file
    for file in ROOT.glob("templates/**/*.html")
    if not file.stem.endswith("offline") and file.parent.name != "mail"
)


def test_copied_files_are_unchanged_and_licensed() -> None:
    listed = dict(line.split()[::-1] for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    copied = {
        str(file.relative_to(VENDOR)): hashlib.sha256(file.read_bytes()).hexdigest()
        for folder in VENDOR.iterdir()
        if folder.is_dir()
        for file in folder.rglob("*")
        if file.is_file()
    }
    assert copied == listed
    table = (VENDOR / "README.md").read_text()
    for folder in {name.partition("/")[0] for name in listed}:
        assert f"| {folder} |" in table
        assert list((VENDOR / folder).glob("LICENSE*"))


def test_templates_have_nothing_inline_and_nothing_foreign() -> None:
    """The policy of shop/platform/headers.py would stop it in the browser; this says so sooner."""
    assert len(TEMPLATES) > 30
    inline = r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]*\bsrc=)"
    foreign = r"""(?:src|href|action)=["'](?:https?:)?//"""
    found = {file: re.findall(f"{inline}|{foreign}", file.read_text("utf-8")) for file in TEMPLATES}
    assert {file: wrong for file, wrong in found.items() if wrong} == {}
