"""System checks of a production: what the demo may do and it may not.

`check --deploy` tells them with any settings; with those of production no process starts until
there is nothing to tell.
"""

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured

from shop.settings import base as demo

MIN_SECRET = 32


def _is_weak(secret: str) -> bool:
    return secret == demo.DEMO_SECRET or len(secret) < MIN_SECRET or len(set(secret)) < 8


@register(Tags.security, deploy=True)
def check_production(**kwargs: Any) -> list[CheckMessage]:
    """The demo's secrets, debugging, any host, a store of one machine only."""
    random = f"at least {MIN_SECRET} random characters"
    wrong = {
        "E001": _is_weak(settings.SECRET_KEY) and f"SECRET_KEY is not {random}.",
        "E002": (
            _is_weak(settings.GATEWAY_SECRET) or settings.GATEWAY_SECRET == settings.SECRET_KEY
        )
        and f"GATEWAY_SECRET, which the payment service knows too, is not {random} of its own.",
        "E003": settings.DEBUG and "DEBUG shows everybody what only you may see.",
        "E004": settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
        and "DATABASE_URL names SQLite: a file for one machine.",
        "E005": "*" in settings.ALLOWED_HOSTS and "ALLOWED_HOSTS allows any name.",
        "E006": settings.SEED_PASSWORD == demo.DEMO_PASSWORD
        and "SEED_PASSWORD is the demo's, which everybody can read.",
    }
    return [Error(why, id=f"shop.{number}") for number, why in wrong.items() if why]


def refuse_the_demos() -> None:
    """Raise ImproperlyConfigured when a production would start with what only the demo may."""
    if settings.PRODUCTION and (wrong := check_production()):
        told = "\n".join(f"  {message.id}: {message.msg}" for message in wrong)
        raise ImproperlyConfigured(f"This is no production:\n{told}")
