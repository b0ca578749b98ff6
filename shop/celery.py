"""The Celery application: `celery -A shop worker`, `celery -A shop beat`."""

import os

from celery import Celery

import shop.logs  # noqa: F401 - request ids in messages
from shop.queued.worker import Consumers
from shop.worker_health import Health

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")

app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.steps["worker"].add(Consumers)
app.steps["worker"].add(Health)
