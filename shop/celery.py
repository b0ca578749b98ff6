"""The Celery application: `celery -A shop worker`, `celery -A shop beat`."""

import os
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent, worker_ready

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


@heartbeat_sent.connect
def _alive(**_: Any) -> None:
    metrics.beat()  # the worker's event loop sends this signal every two seconds
