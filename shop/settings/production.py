"""Settings for production: `base`, hardened and without the lab.

The shop refuses to start with the demo's secrets or stores: see `shop.settings.checks`.
"""

import os

os.environ.setdefault("LOG_FORMAT", "json")
os.environ.setdefault("SEED_PASSWORD", "")

from shop.settings.base import *  # noqa: F403
from shop.settings.base import LOCKS, env

PRODUCTION = True

if "redlock" in LOCKS:
    # A master that restarted without its data votes again only after all earlier leases expired.
    delayed = {**LOCKS["redlock"], "TTL": 6.0, "OPTIONS": {"RESTART_DELAY": 6.0}}
    LOCKS = {**LOCKS, "redlock": delayed}

HTTPS = env.str("HTTPS", default="").lower() not in ("0", "no", "off", "false")
"""Disable only to try the stack on one machine: passwords are then sent in plain text."""
if HTTPS:
    SECURE_SSL_REDIRECT = True
    # Probed from inside the network, without TLS.
    SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|metrics)$"]
    SECURE_HSTS_SECONDS = 31_536_000
    # Both are promises for all hosts of the domain, which browsers keep for months.
    SECURE_HSTS_INCLUDE_SUBDOMAINS = env.bool("HSTS_INCLUDE_SUBDOMAINS", default=False)
    SECURE_HSTS_PRELOAD = env.bool("HSTS_PRELOAD", default=False)
    SILENCED_SYSTEM_CHECKS = ["security.W005", "security.W021"]
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    # Browsers accept this prefix only over TLS, for this host and path: no other host sets them.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
