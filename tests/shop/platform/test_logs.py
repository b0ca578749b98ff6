"""Log lines: JSON, under one id from the request to the worker's task; store errors are short."""

import json
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.db import OperationalError, ProgrammingError
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from devservers import Redis
from devservers.process import with_parent_death_signal
from locking import LockLost, LockMisuse
from shop.platform import logs
from shop.platform.logs import (
    ExpectedErrors,
    JsonFormatter,
    request_id,
    request_id_middleware,
)
from tests.shop.web.test_api import without_table

ROOT = Path(__file__).resolve().parents[3]


def asked(given: str | None) -> tuple[str, str, dict[str, str]]:
    """The id in the answer, in the logs meanwhile, and a line that was logged."""
    seen: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        record = logging.makeLogRecord({"msg": "sold %d", "args": (1,), "levelname": "INFO"})
        seen.extend((request_id.get(), JsonFormatter().format(record)))
        return HttpResponse()

    headers = {} if given is None else {"X-Request-ID": given}
    response = request_id_middleware(view)(RequestFactory().get("/", headers=headers))
    return response["X-Request-ID"], seen[0], json.loads(seen[1])


def test_well_formed_request_id_is_kept() -> None:
    answered, inside, line = asked("abc-123")
    assert answered == inside == line["request_id"] == "abc-123"
    assert (line["message"], line["level"]) == ("sold 1", "INFO")


@pytest.mark.parametrize("given", [None, "", "x" * 65, 'a"b', "a\nX-Evil: 1", "é"])
def test_malformed_request_id_is_replaced(given: str | None) -> None:
    first, second = asked(given)[0], asked(given)[0]
    assert first != second
    assert len(first) == 16


def test_traceback_is_part_of_the_json_line() -> None:
    try:
        raise ValueError("über")
    except ValueError:
        record = logging.LogRecord("shop", 40, "", 0, "bad", (), sys.exc_info())
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "ValueError: über" in json.loads(line)["traceback"]


TASK = """
import logging
from shop.celery import app
@app.task(name="tests.say")
def say():
    logging.getLogger("shop").warning("from the worker")
"""


def test_task_logs_the_id_of_its_request(
    redis_server: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "saying.py").write_text(TASK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
    monkeypatch.setenv("LOG_FORMAT", "json")
    queue = f"logs-{tmp_path.name}"
    worker = [sys.executable, "-m", "celery", "-A", "saying", "worker", "-Q", queue]
    with subprocess.Popen(
        with_parent_death_signal([*worker, "--pool", "solo", "-n", queue]),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            from shop.celery import app

            token = request_id.set("from-the-page")
            app.send_task("tests.say", queue=queue)
            request_id.reset(token)
            assert process.stdout is not None
            line = next(line for line in process.stdout if "from the worker" in line)
            assert json.loads(line)["request_id"] == "from-the-page"
        finally:
            process.terminate()


REFUSED = OperationalError(1040, "Too many connections")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that the test sets."""
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(logs, "time", clock)
    return clock


def logged(log: ExpectedErrors, message: str, *args: object, error: object = None) -> str:
    """Return the line that is logged, or an empty text."""
    exc_info = (type(error), error, None) if isinstance(error, Exception) else None
    record = logging.LogRecord("shop", logging.WARNING, "", 0, message, args, exc_info)
    return logging.Formatter().format(record) if log.filter(record) else ""


def test_repeated_store_errors_are_counted(clock: SimpleNamespace) -> None:
    log, lines = ExpectedErrors(), {}
    for clock.now in (0.0, 0.1, 0.2, 0.9, 1.5, 1.6, 3.0, 5.0):
        if line := logged(log, "Request failed (%s)", REFUSED):
            lines[clock.now] = line.removeprefix(f"Request failed ({REFUSED})")
    more = " [{} more since the last line]"
    assert lines == {0.0: "", 1.5: more.format(3), 3.0: more.format(1), 5.0: ""}
    assert logged(log, "Purchase failed (%s)", REFUSED), "another message"


@pytest.mark.parametrize(
    ("error", "lines", "has_traceback"),
    [
        (REFUSED, 1, False),
        # The schema does not fit, or the shop has sent a wrong statement: the traceback tells.
        (ProgrammingError("relation does not exist"), 1, True),
        (KeyError("x"), 3, True),
        (LockMisuse("x"), 3, True),
    ],
    ids=repr,
)
def test_only_store_errors_are_shortened_and_omitted(clock, error, lines, has_traceback) -> None:
    log = ExpectedErrors()
    found = [logged(log, "Failed: %s", LockLost("y"), error=error) for _ in range(3)]
    assert [bool(line) for line in found] == [True] * lines + [False] * (3 - lines)
    assert ("\n" in found[0]) is has_traceback
    assert type(error).__name__ in found[0]


def test_no_line_has_a_link_that_resets_a_password(db, caplog) -> None:
    """The link of a page that failed is unused: it still works."""
    with without_table("shop_user"):
        failed = Client().get("/accounts/reset/MQ/c7x-secret/").status_code
    (record,) = [one for one in caplog.records if one.name == "django.request"]
    assert ExpectedErrors().filter(record)
    assert failed == 503
    assert record.getMessage().startswith("Service Unavailable: /accounts/reset/***/")
