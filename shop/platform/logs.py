"""Log lines as JSON, and the id that follows a request through the shop and to the worker.

nginx names a request (X-Request-ID) or we do; the answer carries the name, every JSON line written
meanwhile does, and so does every Celery message, whose task then writes it in its lines.
"""

import json
import logging
import re
import secrets
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from celery.signals import before_task_publish, setup_logging, task_postrun, task_prerun

request_id: ContextVar[str] = ContextVar("request_id", default="")
HEADER = "request_id"
"""Of a Celery message."""
_SAFE = re.compile(r"[\w-]{1,64}", re.ASCII)


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, request_id, and the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if name := request_id.get():
            said["request_id"] = name
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


class RequestId:
    """A WSGI application around another that names each request."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve it under its name."""
        given = environ.get("HTTP_X_REQUEST_ID", "")
        name = given if _SAFE.fullmatch(given) else secrets.token_hex(8)
        request_id.set(name)  # the thread's next request sets its own

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, ("X-Request-ID", name)], *rest)

        return self.application(environ, start)


def _send_along(headers: dict[str, Any] | None = None, **kwargs: Any) -> None:
    if headers is not None and (name := request_id.get()):
        headers.setdefault(HEADER, name)


def _take_over(task_id: str, task: Any, **kwargs: Any) -> None:
    request_id.set(task.request.get(HEADER) or (task.request.headers or {}).get(HEADER) or task_id)


def _put_down(**kwargs: Any) -> None:
    request_id.set("")


def _as_django_does(**kwargs: Any) -> None:
    """Somebody listens: Celery leaves logging as the settings have it."""


before_task_publish.connect(_send_along)
task_prerun.connect(_take_over)
task_postrun.connect(_put_down)
setup_logging.connect(_as_django_does)
