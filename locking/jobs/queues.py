"""The task queues that may deliver a run: Django's Tasks, and Celery if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import Any

from locking.jobs import django_queue
from locking.jobs.delivery import Delivery

if HAS_CELERY := find_spec("celery") is not None:
    from locking.jobs import celery_queue


def received(function: Callable[..., Any], kwargs: dict[str, Any]) -> Delivery | None:
    """Return the delivery that this call executes; None if no worker makes it."""
    # A task backend may itself be built on Celery.
    delivery = django_queue.received(function, kwargs)
    return delivery or (celery_queue.received() if HAS_CELERY else None)


def sender(task: str, options: Mapping[str, Any]) -> Callable[..., None] | None:
    """Return what sends a message again, given args, kwargs and what is added to them.

    None if the code has no such task any more.
    """
    if "backend" in options:
        found, send = django_queue.find(task), django_queue.send
    elif HAS_CELERY:
        found, send = celery_queue.find(task), celery_queue.send
    else:
        return None
    return partial(send, found, options=options) if found else None
