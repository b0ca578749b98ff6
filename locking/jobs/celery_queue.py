"""Runs in messages of Celery, whose headers carry the scheduled time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from inspect import unwrap
from typing import Any

from celery import current_app, current_task
from celery.signals import before_task_publish
from celery.utils.time import maybe_make_aware

from locking.jobs import times
from locking.jobs.delivery import HEADER, RUN, Delivery, is_run_once, message_run


def received(function: Callable[..., Any], kwargs: object) -> Delivery | None:
    """Return the delivery that this worker executes; None outside of a task."""
    if not current_task or current_task.request.called_directly:
        return None
    if is_run_once(current_task) and unwrap(current_task.run) is not unwrap(function):
        return None  # another function, which the task calls directly
    request = current_task.request
    headers = request.headers or {}
    return Delivery(
        task=current_task.name,
        args=request.args,
        kwargs=request.kwargs,
        scheduled_for=(moment := headers.get(HEADER)),
        run=headers.get(RUN) or ("" if moment else message_run(current_task.name, request.id)),
        options={**_destination(request), "expires": request.expires, "headers": headers},
        time_limit=current_task.time_limit or current_task.app.conf.task_time_limit,
    )


def send(task: str, args: Any, kwargs: Any, own: Any, options: Mapping[str, Any]) -> bool:
    """Send a message with `own` headers besides those in the options; False if it cannot."""
    found = current_app.tasks.get(task)
    if not found or "backend" in options:  # it was removed from the code, or is a task of Django
        return False
    headers = {**options.get("headers", {}), **own}
    found.apply_async(args, kwargs, **{**options, "headers": headers})
    return True


def _destination(request: Any) -> dict[str, Any]:
    """Return the options that send a message where this one was sent."""
    info = request.delivery_info or {}
    exchange, key, priority = (info.get(name) for name in ("exchange", "routing_key", "priority"))
    # The default exchange, whose name is empty, takes the routing key for the name of a queue.
    place = {"exchange": exchange, "routing_key": key} if exchange else {"queue": key}
    return {**place, "priority": priority}


@before_task_publish.connect  # type: ignore[untyped-decorator]
def _add_run(sender: str, headers: dict[str, Any], **kwargs: Any) -> None:
    """Name the run of a message that no schedule sends; its scheduled time is its eta or now."""
    if HEADER not in headers and is_run_once(current_app.tasks.get(sender)):
        eta = headers["eta"]
        moment = datetime.fromisoformat(eta) if eta else times.now()
        headers[HEADER] = maybe_make_aware(moment, current_app.timezone).isoformat()
        headers[RUN] = message_run(sender, headers["id"])
