"""WSGI entry point: `gunicorn shop.wsgi`."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
os.environ.setdefault("DATABASE_TIMEOUT", "1")  # customers leave a page that takes longer

application = get_wsgi_application()

from shop.platform.headers import Utf8Request  # noqa: E402 - it imports the settings

application.request_class = Utf8Request
