"""Runs in messages of Django's Tasks, which have no headers: arguments carry the scheduled time.

It serves `django.tasks` of Django 6.0 and its backport, the package django-tasks. A worker of any
task backend sends their signals, from which a function learns which message it executes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from inspect import unwrap
from typing import Any

from django.utils.module_loading import import_string

from locking.handler import begin_work, end_work
from locking.jobs.delivery import HEADER, RUN, Delivery, message_run

_running: ContextVar[tuple[Any, ...]] = ContextVar("running", default=())
"""The results of the tasks that run here; a task may execute another one inside of itself."""


def received(function: Callable[..., Any], kwargs: dict[str, Any]) -> Delivery | None:
    """Return the delivery that a call of a task's function executes; None for any other call.

    The arguments that are not the function's own are removed from `kwargs`.
    """
    result = (_running.get() or (None,))[-1]
    if not result or unwrap(result.task.func) is not unwrap(function):
        return None
    task, (moment, run) = result.task.module_path, (kwargs.pop(one, None) for one in (HEADER, RUN))
    return Delivery(
        task=task,
        args=result.args,
        kwargs=kwargs,
        scheduled_for=moment,
        run=run or ("" if moment else message_run(task, str(result.id))),
        options=options_of(result.task),
    )


def options_of(task: Any) -> dict[str, Any]:
    """Return the options with which a message of the task is sent again."""
    return {"backend": task.backend, "queue": task.queue_name, "priority": task.priority}


def send(task: str, args: Any, kwargs: Any, own: Any, options: Mapping[str, Any]) -> bool:
    """Enqueue a message with `own` arguments besides those of the function; False if it cannot."""
    if "backend" not in options:
        return False
    queue, backend, priority = (options.get(name) for name in ("queue", "backend", "priority"))
    try:
        found = import_string(task).using(queue_name=queue, backend=backend, priority=priority)
    except Exception:  # noqa: BLE001 - the task, its queue or its backend was removed
        return False
    found.enqueue(*args, **kwargs, **own)
    return True


def _begin(task_result: Any, **signal: Any) -> None:
    _running.set((*_running.get(), task_result))
    begin_work()


def _end(task_result: Any, **signal: Any) -> None:
    _running.set(tuple(one for one in _running.get() if one.id != task_result.id))
    end_work()


for package in filter(find_spec, ("django.tasks", "django_tasks")):
    signals = import_module(f"{package}.signals")
    signals.task_started.connect(_begin)
    signals.task_finished.connect(_end)
