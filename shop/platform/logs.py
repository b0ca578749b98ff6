"""JSON log lines, and a request id that appears in all log lines of a request and of its tasks.

The id comes from nginx (X-Request-ID) or is generated. It is sent in the response, in each JSON log
line of the request, and in each Celery message, for the log lines of the task.
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
"""The header of a Celery message."""
_SAFE = re.compile(r"[\w-]{1,64}", re.ASCII)


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return time, level, logger, message, process, request id and traceback as JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if current_id := request_id.get():
            fields["request_id"] = current_id
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class RequestId:
    """A WSGI application that sets the id of each request before it calls another."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self.application = application

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """Serve the request with the client's id if it is well-formed, else with a new one."""
        sent = environ.get("HTTP_X_REQUEST_ID", "")
        current_id = sent if _SAFE.fullmatch(sent) else secrets.token_hex(8)
        request_id.set(current_id)  # the thread's next request sets another

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            return start_response(status, [*headers, ("X-Request-ID", current_id)], *rest)

        return self.application(environ, start)


@before_task_publish.connect
def _attach_request_id(headers: dict[str, Any] | None = None, **kwargs: Any) -> None:
    if headers is not None and (current_id := request_id.get()):
        headers.setdefault(HEADER, current_id)


@task_prerun.connect
def _set_request_id(task_id: str, task: Any, **kwargs: Any) -> None:
    request_id.set(task.request.get(HEADER) or (task.request.headers or {}).get(HEADER) or task_id)


@task_postrun.connect
def _clear_request_id(**kwargs: Any) -> None:
    request_id.set("")


@setup_logging.connect
def _keep_logging(**kwargs: Any) -> None:
    """Do nothing: with a receiver connected, Celery does not replace the logging settings."""
