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
    # Whatever a master's disk forgot: it votes again when every lease of before is over.
    LOCKS["redlock"].update(TTL=6.0, OPTIONS={"RESTART_DELAY": 6.0})

HTTPS = env.bool("HTTPS", default=True)
"""Off only to try the stack on one's own machine: then passwords travel in the clear."""
if HTTPS:
    SECURE_SSL_REDIRECT = True
    # Asked from inside, by name and without TLS.
    SECURE_REDIRECT_EXEMPT = [r"^(livez|readyz|metrics)$"]
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = True
    SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = True
    # A browser takes these names only over TLS, for this host and path: no neighbour sets them.
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
