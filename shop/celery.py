"""The Celery application: `celery -A shop worker`, `celery -A shop beat`."""

import os
from typing import Any

from billiard.process import current_process
from celery import Celery
from celery.signals import heartbeat_sent, worker_process_init, worker_ready

import shop.platform.logs  # noqa: F401 - request ids in messages
from shop.platform import metrics

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_ready.connect
def _ready(**_: Any) -> None:
    metrics.serve_metrics()
    metrics.beat()


@worker_process_init.connect
def _end_without_parent(**_: Any) -> None:
    """End a child whose worker died before Celery could ask Linux to end the child with it.

    Two such children would wait for each other's end.
    """
    if current_process()._parent_pid not in (None, os.getppid()):  # None: solo, without children
        os._exit(1)


@heartbeat_sent.connect
def _alive(**_: Any) -> None:
    metrics.beat()  # the worker's event loop sends this signal every two seconds
