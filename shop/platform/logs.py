"""JSON log lines, a request id in all lines of a request and of its tasks, and short store errors.

The id comes from nginx (X-Request-ID) or is generated. It is sent in the response, in each JSON log
line of the request, and in each Celery message, for the log lines of the task.
"""

import json
import logging
import random
import re
import time
from contextvars import ContextVar
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from celery.signals import before_task_publish, setup_logging, task_postrun, task_prerun
from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from redis.exceptions import RedisError

from locking import LockUnavailable
from shop.errors import MISFIT
from shop.platform.headers import Handler

request_id: ContextVar[str] = ContextVar("request_id", default="")
UNAVAILABLE = (OperationalError, InterfaceError, RedisError, LockUnavailable)
"""Errors that every request meets while a store is unavailable."""
INTERVAL = 1.0
"""Minimum seconds between two lines with the same store error."""
HEADER = "request_id"
"""The header of a Celery message."""
_SAFE = re.compile(r"[\w-]{1,64}", re.ASCII)
_RESET = re.compile("(?<=/accounts/reset/)[^/ ]+/[^/ ]+")
"""The part of a link that resets a password, which works until it is used."""


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


class ExpectedErrors(logging.Filter):
    """Log malformed requests and store errors without traceback; the latter once per second.

    An unavailable store affects every request: a line for each would hide the cause and fill the
    disk. A line that follows omitted ones ends with their number.
    """

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}
        """By logger and message: the time of the last line (monotonic), and the lines since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return False for a store error that was logged less than a second ago.

        The errors in MISFIT keep their traceback, because the cause may be a statement of the shop.
        """
        if record.name.startswith("django.security"):
            record.exc_info = None
        error = record.exc_info[1] if record.exc_info else None
        args = record.args if isinstance(record.args, tuple) else ()
        if record.name == "django.request":
            record.args = args = tuple(_RESET.sub("***", str(one)) for one in args)
        is_503 = getattr(record, "status_code", None) == HTTPStatus.SERVICE_UNAVAILABLE
        is_misfit = isinstance(error, MISFIT)
        is_down = any(isinstance(one, UNAVAILABLE) for one in (error, *args))
        if not (is_503 or is_down or is_misfit):
            return True
        key, now = (record.name, str(record.msg)), time.monotonic()
        logged_at, omitted = self._logged.get(key, (-INTERVAL, 0))
        if now - logged_at < INTERVAL:
            self._logged[key] = (logged_at, omitted + 1)
            return False
        self._logged[key] = (now, 0)
        cause = f": {error!r}" if error and not is_misfit else ""
        count = f" [{omitted} more since the last line]" if omitted else ""
        record.msg, record.args = record.getMessage() + cause + count, ()
        if not is_misfit:
            record.exc_info = record.exc_text = None
        return True


def request_id_middleware(get_response: Handler) -> Handler:
    """Give each request the id that the client sent if it is well-formed, else a new one."""

    def serve(request: HttpRequest) -> HttpResponse:
        sent = request.META.get("HTTP_X_REQUEST_ID", "")
        # Not secret; the system's random numbers would cost more than the rest of this middleware.
        new_id = f"{random.getrandbits(64):016x}"
        current_id = sent if _SAFE.fullmatch(sent) else new_id
        request_id.set(current_id)  # the thread's next request sets another
        response = get_response(request)
        response["X-Request-ID"] = current_id
        return response

    return serve


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
