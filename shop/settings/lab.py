"""Settings of the demo, the tests and `manage.py` by default: `base` with the lab under /lab/."""

from importlib.util import find_spec

from django.utils.translation import gettext_lazy as _

from shop.settings.base import *  # noqa: F403
from shop.settings.base import (
    CELERY_BEAT_SCHEDULE,
    CELERY_IMPORTS,
    EMAIL_URL,
    INSTALLED_APPS,
    PAYMENT_PROVIDERS,
    env,
    install_waiting_room,
)

WAITING_ROOM = env.bool("WAITING_ROOM", default=True)
if WAITING_ROOM:
    install_waiting_room()
    fill = {"task": "waiting_room.tasks.fill", "schedule": 10.0, "args": ["backpack", 12]}
    CELERY_BEAT_SCHEDULE["fill"] = fill
INSTALLED_APPS = ["loadtest", *INSTALLED_APPS]
if find_spec("verification"):
    INSTALLED_APPS.append("verification")
CELERY_IMPORTS = [*CELERY_IMPORTS, "loadtest.web.tasks"]
CELERY_BEAT_SCHEDULE = {
    **CELERY_BEAT_SCHEDULE,
    "prune-load-tests": {"task": "loadtest.web.tasks.prune_runs", "schedule": 3600.0},
}
PAYMENT_PROVIDERS = {**PAYMENT_PROVIDERS, "simulated": "loadtest.web.gateway.Simulated"}
PAYMENT_PROVIDER = env.str("PAYMENT_PROVIDER", default="simulated")
"""The customer chooses the outcome, so production refuses it."""
SHOP_FOOTER = env.str("SHOP_FOOTER", default="") or _(
    "Demo shop: nothing is shipped and no one is charged."
)
PAYMENT_TIMEOUT_SECONDS = env.int("PAYMENT_TIMEOUT_SECONDS", default=120)
LAB_GUEST_LIMIT = env.str("LAB_GUEST_LIMIT", default="10/minute")
"""Runs of the lab's preset per address, for visitors who may not run load tests."""
if not EMAIL_URL:
    EMAIL_BACKEND = "loadtest.web.mailbox.Mailbox"
