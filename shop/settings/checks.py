"""System checks that refuse the demo's secrets and stores in production.

`check --deploy` reports them with any settings. With the production settings no process starts
until there are no errors; a warning does not prevent the start.
"""

from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.password_validation import validate_password
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured, ValidationError

from inventory.money import SIGNS
from locking.backends.redis.addresses import url_problem
from locking.backends.redis.server_check import server_problem
from shop.settings.base import DEMO_PASSWORD, DEMO_SECRET

MIN_SECRET = 32
STRIPE_KEYS = ("STRIPE_SECRET_KEY", "STRIPE_PUBLISHABLE_KEY", "STRIPE_WEBHOOK_SECRET")


def _is_weak(secret: str) -> bool:
    return secret == DEMO_SECRET or len(secret) < MIN_SECRET or len(set(secret)) < 8


def _is_guessable(password: str) -> bool:
    try:
        validate_password(password)
    except ValidationError:
        return True
    return password == DEMO_PASSWORD


@register(Tags.security, deploy=True)
def check_production(**kwargs: Any) -> list[CheckMessage]:
    """Report the demo's secrets, debug mode, a wildcard host, and a database file."""
    random = f"at least {MIN_SECRET} random characters"
    keys = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    wrong = {
        "E001": any(map(_is_weak, keys))
        and f"SECRET_KEY or a key in SECRET_KEY_FALLBACKS is not {random}.",
        "E003": settings.DEBUG and "DEBUG is on: error pages show settings and source code.",
        "E004": settings.DATABASES["default"]["ENGINE"].endswith("sqlite3")
        and "DATABASE_URL names SQLite, which only one machine can use.",
        "E005": "*" in settings.ALLOWED_HOSTS and "ALLOWED_HOSTS allows any host name.",
        "E006": settings.SEED_PASSWORD
        and _is_guessable(settings.SEED_PASSWORD)
        and "SEED_PASSWORD is the demo's published password, short, common or a number.",
        "E008": settings.PAYMENT_PROVIDER not in {"none", *settings.PAYMENT_PROVIDERS}
        and "PAYMENT_PROVIDER names no payment provider. To run the shop without, set it to none.",
        "E009": settings.PAYMENT_PROVIDER == "simulated"
        and "PAYMENT_PROVIDER is simulated: customers could mark their orders as paid.",
        "E010": settings.PAYMENT_PROVIDER == "stripe" and _stripe_problem(),
        "E011": settings.CURRENCY not in SIGNS and f"CURRENCY is not one of {', '.join(SIGNS)}.",
    }
    return [Error(why, id=f"shop.{number}") for number, why in wrong.items() if why]


def _stripe_problem() -> str:
    if missing := [name for name in STRIPE_KEYS if not getattr(settings, name)]:
        return f"{', '.join(missing)}: Stripe needs it. See docs/how-to/take-payments.md."
    urls = settings.STRIPE_API_URL, settings.STRIPE_SCRIPT_URL
    if not all(url.startswith("https://") for url in urls):
        return "STRIPE_API_URL or STRIPE_SCRIPT_URL is not https://: others could take the money."
    return ""


@register(Tags.security, deploy=True)
def check_services(**kwargs: Any) -> list[CheckMessage]:
    """Warn if Stripe charges no customer, email does not arrive, or its links lead nowhere."""
    needed = {
        "EMAIL_URL": settings.EMAIL_URL,
        "EMAIL_FROM": "@localhost" not in settings.DEFAULT_FROM_EMAIL,
        "SITE_URL": "//127.0.0.1" not in settings.SITE_URL,
    }
    missing = " and ".join(name for name, is_set in needed.items() if not is_set)
    wrong = {
        "W002": settings.PAYMENT_PROVIDER == "stripe"
        and "_test_" in settings.STRIPE_SECRET_KEY
        and "STRIPE_SECRET_KEY is a test key: no customer is charged.",
        "W003": missing
        and f"{missing} not set: no email is sent, servers refuse it, or its links lead nowhere. "
        "No password can be reset. See docs/how-to/send-mail.md.",
    }
    return [Warning(why, id=f"shop.{number}") for number, why in wrong.items() if why]


@register(Tags.caches, deploy=True)
def check_stores(**kwargs: Any) -> list[CheckMessage]:
    """Warn if the cache can fill the server that keeps locks, queued sales and messages."""
    urls = [settings.REDIS_URL, settings.CELERY_BROKER_URL, settings.QUEUE_REDIS_URL]
    urls += [settings.LOCK_REDIS_URL, *settings.REDLOCK_URLS]
    kept = {_server(url) for url in urls if "+" not in url.partition("://")[0]}
    if _server(settings.CACHE_URL) not in kept:
        return []
    return [
        Warning(
            "CACHE_URL names a server of REDIS_URL, CELERY_BROKER_URL, QUEUE_REDIS_URL, "
            "LOCK_REDIS_URL or REDLOCK_URLS: a full cache stops the locks, the queued sales or the "
            "scheduled tasks.",
            hint="Give the cache a server of its own; another database number is not enough.",
            id="shop.W001",
        )
    ]


@register(Tags.caches, deploy=True)
def check_queue_url(**kwargs: Any) -> list[CheckMessage]:
    """Report that QUEUE_REDIS_URL cannot keep reservations."""
    url = settings.QUEUE_REDIS_URL
    problem = url_problem(url) or (server_problem(url) or ("", ""))[1]
    return [Error(f"QUEUE_REDIS_URL {problem}", id="shop.E007")] if problem else []


def _server(url: str) -> object:
    parts = urlsplit(url)
    return (parts.hostname, parts.port or 6379) if parts.hostname else parts.path


def refuse_insecure_settings() -> None:
    """Raise ImproperlyConfigured if a check fails with the production settings."""
    if settings.PRODUCTION and (wrong := check_production()):
        errors = "\n".join(f"  {message.id}: {message.msg}" for message in wrong)
        raise ImproperlyConfigured(f"Production settings are insecure:\n{errors}")
