"""Settings that production and the lab share, all from the environment.

The variables in STORES choose the stores. When none of them is set, `var/embedded.env` is read,
which the demo writes for its servers.
"""

from pathlib import Path
from urllib.parse import quote

import environ
from django.utils.translation import gettext_lazy as _

from locking.backends.redis.connection import MINIMAL_HANDSHAKE
from shop.settings.redis_retry import RetryOnce

BASE_DIR = Path(__file__).resolve().parents[2]
env = environ.Env()
VAR = Path(env.str("SHOP_VAR", default=str(BASE_DIR / "var")))
STORES = (
    "DATABASE_URL",
    "REDIS_URL",
    "QUEUE_REDIS_URL",
    "LOCK_REDIS_URL",
    "CACHE_URL",
    "REDLOCK_URLS",
    "ZOOKEEPER_HOSTS",
    "CELERY_BROKER_URL",
)
if not any(name in env.ENVIRON for name in STORES):
    environ.Env.read_env(VAR / "embedded.env")

DEBUG = env.bool("DEBUG", default=False)
DEMO_SECRET = "insecure-demo-key-that-production-refuses"  # noqa: S105
DEMO_PASSWORD = "red-kettle"  # noqa: S105
PRODUCTION = False
SECRET_KEY = env.str("SECRET_KEY", default=DEMO_SECRET)
SECRET_KEY_FALLBACKS = env.list("SECRET_KEY_FALLBACKS", default=[])
"""Earlier keys, whose signatures are still accepted."""
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])
CSRF_TRUSTED_ORIGINS = env.list("CSRF_TRUSTED_ORIGINS", default=[])

INSTALLED_APPS = [
    "shop",
    "shop.mail",
    "inventory",
    "locking",
    "django_celery_beat",
    "django_htmx",
    "shop.administration.admin_site.ShopAdminConfig",  # django.contrib.admin
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "whitenoise.runserver_nostatic",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "shop.platform.logs.request_id_middleware",
    "shop.platform.metrics.metrics_middleware",
    "shop.platform.deadline.deadline_middleware",
    "django.middleware.security.SecurityMiddleware",
    "shop.platform.headers.policy_middleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "shop.web.purchase.PurchaseTokenMiddleware",  # before all that a token makes unnecessary
    "shop.platform.shared_pages.SharedPageMiddleware",  # before all that depends on the visitor
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "shop.errors.DomainErrorMiddleware",
]

ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.template.context_processors.i18n",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "shop.web.context.banners",
            ]
        },
    }
]

# --- Stores ------------------------------------------------------------------------------------

DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{quote(str(VAR))}/shop.sqlite3")}
_database = DATABASES["default"]
_database.setdefault("CONN_MAX_AGE", 60)
_seconds = env.int("DATABASE_TIMEOUT", default=10)  # shop/wsgi.py sets 1
if _database["ENGINE"].endswith("sqlite3"):
    # IMMEDIATE: a transaction waits for the write lock at its start, instead of failing when it
    # upgrades from a read lock.
    _database.setdefault("OPTIONS", {}).update(
        transaction_mode="IMMEDIATE",
        timeout=10,
        init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cache_size=-8000;",
    )
elif _database["ENGINE"].endswith("mysql"):
    _database.setdefault("OPTIONS", {}).update(
        charset="utf8mb4",
        autocommit=True,
        isolation_level=None,  # the engine would set it in a message of its own
        connect_timeout=1,
        read_timeout=_seconds,
        write_timeout=_seconds,
        # The server ends a statement before its client gives up, so that the outcome is known; only
        # MariaDB can end one that waits for less than a second. Strict mode refuses values that do
        # not fit, instead of truncating them.
        init_command=(
            f"SET innodb_lock_wait_timeout={min(3, max(1, _seconds // 2))}"
            f" /*M!100101 , max_statement_time={0.9 * _seconds:g} */,"
            " sql_mode='STRICT_TRANS_TABLES';"
            " SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        ),
    )
elif _database["ENGINE"].endswith("postgresql"):
    _session = {
        # The server ends a statement before its client gives up, so that the outcome is known.
        "statement_timeout": 900 * _seconds,
        "lock_timeout": min(3000, 500 * _seconds),
        "default_transaction_isolation": r"read\ committed",
        "TimeZone": "UTC",  # Django would set it in a message of its own
    }
    _database.setdefault("OPTIONS", {}).update(
        connect_timeout=2,  # the least that libpq accepts
        tcp_user_timeout=1000 * _seconds,  # and for a reply, see shop/platform/database.py
        keepalives_idle=30,
        keepalives_interval=10,
        keepalives_count=3,
        options=" ".join(f"-c {name}={value}" for name, value in _session.items()),
    )
    _database["DISABLE_SERVER_SIDE_CURSORS"] = True  # a pooler may share the sessions
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL", default="redis://127.0.0.1:6379/0")
"""The broker, flags and waiting rooms: a server that neither evicts nor loses data."""
LOCK_REDIS_URL = env.str("LOCK_REDIS_URL", default="") or REDIS_URL
"""The locks: also a Cluster (docs/how-to/redis-deployments.md)."""
QUEUE_REDIS_URL = env.str("QUEUE_REDIS_URL", default="") or REDIS_URL
"""Queued sales: also a Cluster, whose nodes share the sales. It neither evicts nor loses data."""
CACHE_URL = env.str("CACHE_URL", default="") or REDIS_URL
"""Pages and rate limits: a server that may evict. Another database number of the same server does
not protect the locks: both share its memory limit."""
REDLOCK_URLS = env.list("REDLOCK_URLS", default=[])
ZOOKEEPER_HOSTS = env.str("ZOOKEEPER_HOSTS", default="")

_options = {"socket_timeout": 0.5, "socket_connect_timeout": 1, "retry": RetryOnce(CACHE_URL)}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": CACHE_URL,
        "KEY_PREFIX": "shop",
        "OPTIONS": {**_options, **MINIMAL_HANDSHAKE},
    }
}
SESSION_ENGINE = "shop.purchase.tokens"

# --- Locks -------------------------------------------------------------------------------------

LOCKS = {
    "none": {"BACKEND": "locking.backends.none.NoneBackend"},
    "process": {"BACKEND": "locking.backends.process.ProcessBackend"},
    "database": {"BACKEND": "locking.backends.database.DatabaseBackend", "LOCATION": "default"},
    "redis": {
        "BACKEND": "locking.backends.redis.RedisBackend",
        "LOCATION": LOCK_REDIS_URL,
        "OPTIONS": {"SOCKET_TIMEOUT": 0.8, "CONNECT_TIMEOUT": 0.8},
    },
}
if _database["ENGINE"].endswith("mysql"):
    LOCKS["mysql_session"] = {
        "BACKEND": "locking.backends.mysql_session.MySQLSessionBackend",
        "LOCATION": "default",
    }
if _database["ENGINE"].endswith("postgresql"):
    LOCKS["postgresql_session"] = {
        "BACKEND": "locking.backends.postgresql_session.PostgreSQLSessionBackend",
        "LOCATION": "default",
    }
if REDLOCK_URLS:
    LOCKS["redlock"] = {
        "BACKEND": "locking.backends.redlock.RedLockBackend",
        "LOCATION": REDLOCK_URLS,
    }
if ZOOKEEPER_HOSTS:
    LOCKS["zookeeper"] = {
        "BACKEND": "locking.backends.zookeeper.ZooKeeperBackend",
        "LOCATION": ZOOKEEPER_HOSTS,
        "OPTIONS": {"PASSWORD": env.str("ZOOKEEPER_PASSWORD", default="")},
    }
LOCK_POLICY = {
    "BACKEND": "redis",
    "MODE": "conditional",
    "MODES": "inventory.models.WriteStrategy",
}
# Always Redis, no matter which lock guards the stock: staff may activate `none` there.
LOCK_SINGLE_FLIGHT = {"CACHE": "default", "LOCK": "redis"}

# --- Celery ------------------------------------------------------------------------------------

CELERY_BROKER_URL = env.str("CELERY_BROKER_URL", default=REDIS_URL)
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# A worker also tries again if Redis refuses writes, because it is full or has become a replica.
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
CELERY_BROKER_TRANSPORT_OPTIONS = {
    # An unacknowledged message is redelivered after this time, which exceeds every task's limit.
    "visibility_timeout": 180,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
}
CELERY_IMPORTS = ["locking.jobs.tasks"]
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = True
CELERY_TASK_TIME_LIMIT = 150
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULER = "locking.jobs.beat:Scheduler"
# The initial schedule, in seconds; staff change it in the admin.
SCHEDULE = {
    "shop.tasks.expire_unpaid_orders": 5.0,
    "shop.tasks.time_out_payments": 5.0,
    "shop.tasks.refund_payments": 5.0,
    "shop.tasks.send_mail": 5.0,
    "shop.tasks.reconcile_queued_sales": 10.0,
    "shop.tasks.audit_stock": 60.0,
    "shop.tasks.prune_quotas": 3600.0,
    "shop.tasks.prune_sessions": 3600.0,
    "shop.tasks.delete_old_mail": 3600.0,
    "locking.jobs.tasks.resend_unfinished_runs": 5.0,
    "locking.jobs.tasks.sweep_dead_locks": 600.0,
    "locking.jobs.tasks.prune_idempotency_keys": 3600.0,
    "locking.jobs.tasks.prune_job_runs": 3600.0,
}
CELERY_BEAT_SCHEDULE = {
    task.rpartition(".")[2].replace("_", "-"): {"task": task, "schedule": seconds}
    for task, seconds in SCHEDULE.items()
}
CELERY_BEAT_SCHEDULE["resend-unfinished-runs"] |= {"options": {"expire_seconds": 10}}


def install_waiting_room() -> None:
    """Add the application that lets staff put a waiting room in front of a sale, once."""
    if "waiting_room" not in INSTALLED_APPS:
        INSTALLED_APPS.insert(0, "waiting_room")
        CELERY_BEAT_SCHEDULE["admit"] = {"task": "waiting_room.tasks.admit", "schedule": 5.0}


WAITING_ROOM = env.bool("WAITING_ROOM", default=False)
if WAITING_ROOM:
    install_waiting_room()

# --- People, pages, languages ------------------------------------------------------------------

AUTH_USER_MODEL = "shop.User"
AUTHENTICATION_BACKENDS = ["shop.web.authentication.Backend"]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}Validator"}
    for name in ("UserAttributeSimilarity", "MinimumLength", "CommonPassword", "NumericPassword")
]
PASSWORD_HASHERS = [f"shop.platform.passwords.Limited{name}Hasher" for name in ("Argon2", "PBKDF2")]
WEB_THREADS = env.int("WEB_THREADS", default=8)
"""Threads of one process of the web server; all but two may be busy with passwords."""
MAX_HASHES = env.int("MAX_HASHES", default=1)
"""Passwords that one process hashes at a time; further ones wait for a second, then get 503."""
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "home"

LANGUAGE_CODE = "en"
LANGUAGES = [("en", _("English")), ("zh-hans", _("Simplified Chinese"))]
LOCALE_PATHS = [BASE_DIR / "locale"]
FORMAT_MODULE_PATH = "shop.formats"
TIME_ZONE = env.str("TIME_ZONE", default="Asia/Shanghai")
SHOP_NAME = env.str("SHOP_NAME", default="") or _("Flash Sale")
SHOP_FOOTER = env.str("SHOP_FOOTER", default="")
SOURCE_URL = env.str("SOURCE_URL", default="")
CSRF_FAILURE_VIEW = "shop.errors.csrf_failure"

BUY_LIMIT = env.str("BUY_LIMIT", default="60/10 seconds")
"""Purchases per customer; further ones get 429."""
UNPAID_LIMIT = env.int("UNPAID_LIMIT", default=3)
"""Orders of a customer that may expire unpaid in a sale before the next one is refused; 0 = any."""
SIGN_IN_LIMIT = env.str("SIGN_IN_LIMIT", default="300/minute")
"""Sign-ins and sign-ups per address."""
SIGN_IN_FAILURE_LIMIT = env.str("SIGN_IN_FAILURE_LIMIT", default="10/minute")
"""Wrong passwords per name and address; also changes per account."""
SIGN_IN_NAME_LIMIT = env.str("SIGN_IN_NAME_LIMIT", default="100/hour")
"""Wrong passwords per name, from all addresses and unknown devices together."""
SIGN_UP_TAKEN_LIMIT = env.str("SIGN_UP_TAKEN_LIMIT", default="10/hour")
"""Sign-ups per address with a name that is taken; then all sign-ups from there get 429."""
PROOF_OF_WORK = env.int("PROOF_OF_WORK", default=0)
"""Zero bits of the proof of work of a sign-up and of joining a waiting room, up to 32; 0 = off."""
PROOF_WAIT_LIMIT = env.str("PROOF_WAIT_LIMIT", default="5/hour")
"""Such forms per address that a browser without script sends after a minute instead."""
SEED_PASSWORD = env.str("SEED_PASSWORD", default=DEMO_PASSWORD)
"""Password of the accounts that `seed` creates; if empty, they cannot sign in."""
PROXY_HOPS = env.int("PROXY_HOPS", default=0)
"""Number of own proxies, each of which appends to X-Forwarded-For; 0 ignores that header."""

MEDIA_URL, STATIC_URL = "media/", "static/"
MEDIA_ROOT = env.str("MEDIA_ROOT", default=str(VAR / "media"))
"""Directory of the photos of products, which all web processes share."""
STATIC_ROOT = VAR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "inventory.pictures.Storage"},
    "staticfiles": {"BACKEND": "shop.platform.staticfiles.Storage"},
}

MAX_WAITING = env.int("MAX_WAITING", default=6)
"""Threads of one process that may wait for the lock of one sale while no purchase obtains it; keep
it below the number of the web server's threads, so that the others can serve pages."""
LOCK_TIMEOUT = env.float("LOCK_TIMEOUT", default=1.0)
"""Seconds after the request arrived for which a purchase waits for the lock of its sale."""
HARD_DEADLINE = env.float("HARD_DEADLINE", default=1.3)
"""Seconds from its arrival after which a purchase begins no write. Longer than LOCK_TIMEOUT: with a
store that takes 0.4 s per reply, it leaves time to write the order and release the lock."""
MAX_ATTEMPTS = 3
"""Attempts to write an order; a deadlock, a stale fence or a concurrent form of the same customer
leads to the next attempt."""
PURCHASES_PER_GRANT = env.int("PURCHASES_PER_GRANT", default=8)
"""Purchases of one process that are committed in one transaction under one grant of the sale's
lock; 1 disables group commit."""
WAITING_ROOM_INLET_PER_MINUTE = env.int("WAITING_ROOM_INLET_PER_MINUTE", default=40_000)
"""People whom a new waiting room admits per minute: see docs/how-to/run-a-waiting-room.md."""
WAITING_ROOM_POLLS_PER_SECOND = env.int("WAITING_ROOM_POLLS_PER_SECOND", default=10_000)
"""Polls of all who wait together; pages poll less often when more people wait."""
WAITING_ROOM_TURN_SECONDS = env.int("WAITING_ROOM_TURN_SECONDS", default=120)
"""Time for which an admitted customer can buy before the unit is offered to the next."""
PURCHASE_TOKEN_SECONDS = env.int("PURCHASE_TOKEN_SECONDS", default=600)
"""Seconds for which the token of a sale page replaces the check of session, user and CSRF token."""
METRICS_PORT = env.int("METRICS_PORT", default=0)
"""Port on which each Celery worker and consumer serves Prometheus metrics; 0 disables it."""
HEARTBEAT_FILE = env.str("HEARTBEAT_FILE", default="")
"""File that each Celery worker and consumer touches every two seconds or more often; a health
check tests its age. Empty disables it."""
PAY_WITHIN_SECONDS = env.int("PAY_WITHIN_SECONDS", default=900)
"""Seconds for which a pending order keeps its units."""
CURRENCY = env.str("CURRENCY", default="CNY")
"""ISO code of the currency of all prices, one of `inventory.money.SIGNS`."""
PAYMENT_TIMEOUT_SECONDS = env.int("PAYMENT_TIMEOUT_SECONDS", default=600)
"""Seconds after which the provider is asked about a payment, which then ends."""
PAYMENT_PROVIDER = env.str("PAYMENT_PROVIDER", default="")
"""A key of PAYMENT_PROVIDERS, or "none": orders cannot be paid online. Production needs a value."""
PAYMENT_PROVIDERS = {"stripe": "shop.payments.stripe.Stripe"}
STRIPE_SECRET_KEY = env.str("STRIPE_SECRET_KEY", default="")
STRIPE_PUBLISHABLE_KEY = env.str("STRIPE_PUBLISHABLE_KEY", default="")
STRIPE_WEBHOOK_SECRET = env.str("STRIPE_WEBHOOK_SECRET", default="")
STRIPE_TIMEOUT = env.float("STRIPE_TIMEOUT", default=3.0)
"""Seconds for which one of two attempts of a call waits for Stripe."""
STRIPE_API_URL = env.str("STRIPE_API_URL", default="https://api.stripe.com")
STRIPE_SCRIPT_URL = env.str("STRIPE_SCRIPT_URL", default="https://js.stripe.com/v3/")

EMAIL_URL = env.str("EMAIL_URL", default="")
"""The SMTP server; without one, the shop sends no email and offers none."""
vars().update(env.email_url_config(EMAIL_URL or "dummymail:"))
EMAIL_TIMEOUT = 5
DEFAULT_FROM_EMAIL = env.str("EMAIL_FROM", default="") or "Flash Sale <shop@localhost>"
_local = f"http://127.0.0.1:{env.str('PORT', default='') or 8000}"
SITE_URL = (env.str("SITE_URL", default="") or _local).rstrip("/")
PASSWORD_RESET_TIMEOUT = 3600

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "filters": {"expected_errors": {"()": "shop.platform.logs.ExpectedErrors"}},
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"},
        "json": {"()": "shop.platform.logs.JsonFormatter"},
    },
    "handlers": {
        "console": {
            "class": "logging.StreamHandler",
            "formatter": env.str("LOG_FORMAT", default="line"),
            "filters": ["expected_errors"],
        }
    },
    "loggers": {
        "celery": {"level": "WARNING"},  # logs two lines per task
        "kazoo": {"level": "WARNING"},  # logs every connection
        "django.request": {"level": "ERROR"},  # a sale refuses thousands of requests
    },
    "root": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")},
}
