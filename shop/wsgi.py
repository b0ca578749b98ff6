"""WSGI entry point: `gunicorn shop.wsgi`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
os.environ.setdefault("DATABASE_TIMEOUT", "2")  # customers leave a page that takes longer
django.setup(set_prefix=False)

from django.core.handlers.wsgi import WSGIHandler  # noqa: E402

from shop.platform.logs import RequestId  # noqa: E402
from shop.platform.metrics import RequestMetrics  # noqa: E402

application = RequestId(RequestMetrics(WSGIHandler()))
