"""Every code block of the docs works: Python is executed, commands are run or parsed."""

import re

import pytest

from tests.docs import shell
from tests.docs.examples import EXAMPLES, Names, check_settings
from tests.docs.pages import (
    BLOCKS,
    CURRENT,
    PAGES,
    Block,
    blocks_of,
    indented_code,
    page_id,
    without_blocks,
)

pytestmark = pytest.mark.django_db(transaction=True)

LANGUAGES = ("python", "sh", "text")
"""A new language needs a test here; `text` is for diagrams and output."""
REPLAYED = {
    f"docs/library/{page}.md"
    for page in ("tutorial", "migrate", "test-your-code", "write-a-backend")
} | {"docs/how-to/buy-with-curl.md"}
"""test_library_tutorial.py and test_replayed_pages.py run their blocks."""
SHELL = [block for block in BLOCKS if block.language == "sh" and block.page not in REPLAYED]


def python_blocks(page: str) -> list[Block]:
    return [block for block in BLOCKS if (block.page, block.language) == (page, "python")]


def execute(blocks: list[Block], names: Names) -> Names:
    """Run the blocks of a page in one namespace; the settings among them must be valid."""
    namespace = {**names, "__name__": "documented"}
    for block in blocks:
        exec(compile(block.code, str(block), "exec"), namespace)  # noqa: S102
    check_settings(namespace)
    return namespace


def test_every_block_has_a_language_that_is_checked() -> None:
    assert len(BLOCKS) > 20
    assert [str(block) for block in BLOCKS if block.language not in LANGUAGES] == []
    indented = {page_id(page): indented_code(page.read_text()) for page in PAGES}
    assert {page: lines for page, lines in indented.items() if lines} == {}


def test_every_python_page_has_an_example() -> None:
    pages = {block.page for block in BLOCKS if block.language == "python"}
    assert pages - REPLAYED == set(EXAMPLES)


@pytest.mark.parametrize("page", EXAMPLES)
def test_python_blocks_run(page: str) -> None:
    EXAMPLES[page](lambda names: execute(python_blocks(page), names))


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell_blocks_are_accepted(block: Block) -> None:
    shell.check(block.code)


def test_commands_in_running_text_have_these_options() -> None:
    for page in CURRENT:
        for span in re.findall(r"`([^`\n]+)`", without_blocks(page.read_text())):
            check_span(span)


def check_span(span: str) -> None:
    """Refuse an option that a command of ours does not have."""
    words = span.replace("\\|", " ").split()
    is_whole = words[:1] == ["manage.py"] and len(words) > 1
    name = words[1] if is_whole else words[0]
    if is_whole or name in ("lab", "lock_policy", "audit_stock", "locks"):
        options = {word.strip("[]") for word in words if re.match(r"\[?--\w", word)}
        assert options <= shell.options_of(shell.command_parser(name)), span


@pytest.mark.parametrize(
    "code",
    [
        "python manage.py audit_stock --no-such-option",
        "python manage.py lock_policy switch no_such_backend",
        "python tools/no_such_tool.py",
        "PORT=1 make no-such-target",
        "docker compose exec -T no-such-service sh",
        "docker compose run --rm web python manage.py no_such_command",
        "helm install shop deploy/helm --set no-such-value=1",
        "gunicorn shop.wsgi --config no/such/file.py",
        'pip install ".[no-such-extra]"',
        "no-such-program",
    ],
)
def test_control_wrong_commands_are_found(code: str) -> None:
    with pytest.raises(shell.Wrong):
        shell.check(f"# first\n{code}")


@pytest.mark.parametrize(
    "code",
    [
        "from locking import no_such_name",
        "undefined_name()",
        'LOCKS = {"a": {"BACKEND": "locking.backends.none.NoneBackend", "TTL": 0}}\n'
        'LOCK_POLICY = {"BACKEND": "a"}',
        'INSTALLED_APPS = [..., "no_such_app"]',
    ],
)
def test_control_wrong_python_is_found(code: str) -> None:
    block = Block("control.md", "python", code, 1)
    with pytest.raises((ImportError, NameError, AssertionError)):
        execute([block], {})


def test_control_wrong_options_in_text_are_found() -> None:
    check_span("lab endure recovery --rounds 3")
    with pytest.raises(AssertionError):
        check_span("manage.py lab endure recovery --no-such-option 3")


def test_control_blocks_are_found() -> None:
    page = "one\n\n```python\nimport os\n```\n\ntwo\n\n    three\n"
    assert [(block.language, block.code) for block in blocks_of(page)] == [
        ("python", "import os\n")
    ]
    assert indented_code(page) == ["    three"]
