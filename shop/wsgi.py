"""WSGI entry point: `gunicorn shop.wsgi`."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings.lab")
os.environ.setdefault("DATABASE_TIMEOUT", "1")  # customers leave a page that takes longer

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]
UTF8 = re.compile(r';\s*charset="?utf-?8"?\s*(?=;|$)', re.IGNORECASE)
MAX_DIGITS = 18
"""Digits of a length that fits a signed 64-bit integer."""


def only_utf8(django: Application) -> Application:
    """Hide content types from Django with which it fails before its own error handling.

    A request with another charset than UTF-8 or an endless length has no content type then.
    """

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = UTF8.sub("", environ.get("CONTENT_TYPE", ""))
        is_odd = "charset" in kind.lower() or "*=" in kind
        is_endless = len(environ.get("CONTENT_LENGTH", "")) > MAX_DIGITS
        environ["CONTENT_TYPE"] = "" if is_odd or is_endless else kind
        return django(environ, start_response)

    return serve


application = only_utf8(get_wsgi_application())
