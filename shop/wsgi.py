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
MAX_LENGTH = 10**18 - 1
"""Bytes of a body: a number that fits a signed 64-bit integer."""


def only_utf8(django: Application) -> Application:
    """Keep content types and lengths from Django with which it fails before its error handling.

    A request with another charset than UTF-8 has no content type then.
    """

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        kind = UTF8.sub("", environ.get("CONTENT_TYPE", ""))
        is_odd = "charset" in kind.lower() or "*=" in kind
        environ["CONTENT_TYPE"] = "" if is_odd else kind
        if len(environ.get("CONTENT_LENGTH", "")) > len(str(MAX_LENGTH)):
            environ["CONTENT_LENGTH"] = str(MAX_LENGTH)
        return django(environ, start_response)

    return serve


application = only_utf8(get_wsgi_application())
