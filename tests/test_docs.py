"""The documentation keeps up with the code."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), ROOT / "tests/README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_every_environment_variable_is_documented() -> None:
    modules = (ROOT / "shop" / "settings").glob("*.py")
    settings = "".join(module.read_text() for module in modules)
    names = set(re.findall(r'env\.\w+\(\s*"([A-Z_]+)"', settings))
    assert {"DATABASE_URL", "SECRET_KEY"} <= names
    page = (ROOT / "docs/reference/settings.md").read_text()
    assert {name for name in names if f"`{name}`" not in page} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target
