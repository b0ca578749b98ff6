"""Every code block of the docs works: Python is executed, commands are run or parsed.

The Python blocks of a page run one after another in one namespace, in the project of its example,
which then checks that they do what the page promises.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import import_module
from itertools import count
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from django.apps import apps
from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import connection
from django.test import RequestFactory, override_settings

from locking import LockLost, locks, single_flight
from locking.checks import check_locks, check_single_flight
from locking.jobs import runs
from tests.docs import shell
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


# --- the project of each page: names that a reader would have -------------------------------------

Names = dict[str, Any]
Run = Callable[[Names], Names]
"""Execute a page's blocks with these names, and return all names after it."""


def page_without_project(run: Run) -> None:
    run({})


def idempotent_requests(run: Run) -> None:
    sent: list[tuple[object, str]] = []
    user = get_user_model().objects.create_user("li")
    names = run({"send_money": lambda user, what: sent.append((user, what))})
    form = {"amount": "5", "idempotency_key": str(uuid4())}
    for _ in range(2):
        request = RequestFactory().post("/transfer/", form)
        request.user = user
        assert names["transfer"](request).content == b'{"sent": "5"}'
        assert names["pay"](user, "k", "invoice 7") == b"paid"
    assert sent == [(user, "5"), (user, "invoice 7")]


def schedule_jobs(run: Run) -> None:
    written: list[list[datetime]] = []
    celery = Celery("docs", set_as_current=True)
    try:
        names = run({"read_ledger": lambda until: [until], "write": written.append})
        task, due = celery.tasks[names["settle_accounts"].name], datetime.now(UTC)
        for _ in range(2):
            task.apply(headers={runs.HEADER: due.isoformat()}).get()
            names["every_hour"]()
    finally:
        import_module("shop.celery").app.set_current()
        celery.close()
    assert written == [[due], [due.replace(minute=0, second=0, microsecond=0)]]


def cache_values(run: Run) -> None:
    built = count(1)
    lists = run({"read_lists": lambda: next(built)})["home_lists"]
    single_flight.invalidate("home")
    assert [lists("en"), lists("en"), lists("zh-hans")] == [1, 1, 2]


def no_hand_off(run: Run) -> None:
    measure = run({})["acquisitions_per_second"]
    assert measure(locks["process"], 0.001, threads=2, seconds=0.05) > 0


def guarantees(run: Run) -> None:
    names = run({})
    account, set_balance = names["Account"], names["set_balance"]
    with connection.schema_editor() as schema:
        schema.create_model(account)
    try:
        row = account.objects.create()
        set_balance(row.pk, 5)
        row.refresh_from_db()
        assert (row.balance, row.fence_epoch > 0, row.fence_token > 0) == (5, True, True)
        account.objects.update(fence_epoch=row.fence_epoch + 1)  # a later holder
        with pytest.raises(LockLost):
            set_balance(row.pk, 6)
    finally:
        with connection.schema_editor() as schema:
            schema.delete_model(account)
        del apps.all_models["bank"]["account"]


def views_and_tasks(run: Run) -> None:
    moved: list[tuple[int, int, int]] = []
    written: list[tuple[int, tuple[int, int]]] = []
    reminded: list[int] = []
    celery = Celery("docs", set_as_current=True)
    celery.conf.task_always_eager = True
    try:
        names = run(
            {
                "move": lambda *what: moved.append(what),
                "remember": reminded.append,
                "write": lambda pk, fence: written.append((pk, fence)),
            }
        )
        assert list(names["transfer"](7, 4, 50)) == ["account:4", "account:7"]
        assert moved == [(7, 4, 50)]
        names["remind"].delay(42)
        assert reminded == [42]
        assert names["request_rebuild"](7) != names["request_rebuild"](7)
        assert names["request_restock"](8)
        assert reminded == [42, 7, 7, 8]
        assert names["pay"](RequestFactory().post("/"), 42).content == b"paid 42"
        assert names["invoice"](RequestFactory().post("/"), 42).status_code == 202
        ((pk, (epoch, token)),) = written
        assert (pk, epoch > 0, token > 0) == (42, True, True)
        assert not names["lock"]("invoice:42").locked()
    finally:
        import_module("shop.celery").app.set_current()
        celery.close()


def shared_locks(run: Run) -> None:
    products: list[str] = []
    names = run({"resize": lambda picture: picture * 2, "products": products})
    assert names["convert"]("x") == "xx"
    first = names["load"](["lamp"])
    assert names["export"]() == ["lamp"]
    assert names["load"]([]) > first > 0
    assert not names["catalogue"].write().locked()


EXAMPLES: dict[str, Callable[[Run], None]] = {
    "docs/adr/0003-no-hand-off-inside-a-process.md": no_hand_off,
    "docs/how-to/cache-values.md": cache_values,
    "docs/how-to/idempotent-requests.md": idempotent_requests,
    "docs/how-to/schedule-jobs.md": schedule_jobs,
    "locking/README.md": page_without_project,
    "docs/library/choose-a-lock.md": page_without_project,
    "docs/library/guarantees.md": guarantees,
    "docs/library/semaphores.md": shared_locks,
    "docs/library/views-and-tasks.md": views_and_tasks,
    "docs/reference/settings.md": page_without_project,
}


def check_settings(names: Names) -> None:
    """Raise an error if Django or the library would refuse the settings of a block."""
    found = {name: value for name, value in names.items() if name.isupper()}
    for name, value in found.items():
        if name == "INSTALLED_APPS":
            for app in value:
                assert app is ... or import_module(app), app
        elif name.endswith("_SCHEDULER"):
            module, _, attribute = value.partition(":")
            assert hasattr(import_module(module), attribute), value
    for entry in found.get("LOCKS", {}).values():
        if str(entry.get("LOCATION", "")).startswith("redis://127.0.0.1"):
            entry["LOCATION"] = settings.REDIS_URL  # the private one
    ours = {name: value for name, value in found.items() if name.startswith("LOCK")}
    if ours:
        with override_settings(**ours):
            assert [*check_locks(), *check_single_flight()] == []


# --- the blocks ---------------------------------------------------------------------------------


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
