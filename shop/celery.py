"""The Celery application: `celery -A shop worker`, `celery -A shop beat`."""

import os
from typing import Any

from celery import Celery
from celery.signals import heartbeat_sent, worker_ready

import shop.platform.logs  # noqa: F401 - request ids in messages

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


@worker_ready.connect
def _ready(**_: Any) -> None:
    # Imported here: Django is not configured yet when Celery imports this module.
    from shop.platform import heartbeat

    heartbeat.serve_metrics()
    heartbeat.beat()


@heartbeat_sent.connect
def _alive(**_: Any) -> None:
    # The worker's event loop sends this signal every two seconds.
    from shop.platform import heartbeat

    heartbeat.beat()
