"""Purchase tokens: signed values that identify the customer of a purchase, and their revocation.

The sale page of a signed-in customer contains one in its form. A token names customer, sale and
expiry. Its signature also covers the form's idempotency key, so that a used token buys nothing
twice, and the session cookie, so that it is worthless in another browser and no other site can send
one. A form without a valid token is not refused: the view then checks session, user and CSRF token.

The end of a session revokes that session's tokens. A change of the password or of `is_active` and
the deletion of an account revoke all tokens of the customer. The rows are in the database, where
sessions and accounts are: a change that cannot record its revocation fails itself. A process that
cannot read the rows accepts no token. Without a signal there is no revocation: call
`revoke_customer` after `QuerySet.update` or SQL.
"""

import hashlib
import time
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.sessions.backends import db
from django.core.signing import BadSignature, Signer
from django.db import connection
from django.db.models.signals import post_delete, pre_save
from django.utils import timezone

from shop.errors import STORE_ERRORS
from shop.models import TokenRevocation, User
from shop.platform.cache import RefreshingCache

FRESH = 0.5
"""Seconds after which one thread of a process reads the revocations again."""
MAX_AGE = 0.9
"""Seconds for which a process may use what it has read; a revocation has effect within one."""
MARGIN = 60
"""Seconds by which the clocks of web processes may differ, or a page may be late: a token issued
up to this long after a change of its account counts as issued before it."""
READ_SESSION = (
    "SELECT session_key, session_data FROM django_session"
    " WHERE session_key = %s AND expire_date > %s"
)
ENDS_TOKENS = frozenset({"password", "is_active"})
"""Fields of a user; a change of one of them revokes the user's tokens."""


class PurchaseToken(NamedTuple):
    """The content of a valid token."""

    customer_id: int
    sale_id: int
    is_first: bool
    """Hint: the customer had no order in this sale when the token was issued."""


def issue(*, customer_id: int, sale_id: int, key: str, session: str, is_first: bool) -> str:
    """Return a token; `session` is the session cookie's value."""
    expires = int(time.time()) + settings.PURCHASE_TOKEN_SECONDS
    return _signer(key, session).sign(f"{customer_id}.{sale_id}.{is_first:d}.{expires}")


def read(text: str, *, key: str, session: str) -> PurchaseToken | None:
    """Return the content of a token that is valid for this key and this session, else None."""
    if not session or not text.isascii():
        return None
    try:
        content = _signer(key, session).unsign(text)
    except BadSignature:
        return None
    customer_id, sale_id, is_first, expires = map(int, content.split("."))
    issued_at = expires - settings.PURCHASE_TOKEN_SECONDS
    if expires < time.time() or is_revoked(
        customer_id=customer_id, session=session, issued_at=issued_at
    ):
        return None
    return PurchaseToken(customer_id, sale_id, bool(is_first))


class Revocations(NamedTuple):
    """The revocations that matter to tokens which have not expired."""

    read_at: float
    """Monotonic time at which the read began."""
    times: dict[str, int]
    """Unix time of the newest revocation of each subject."""


_revocations: RefreshingCache[None, Revocations] = RefreshingCache()
clear = _revocations.clear


class SessionStore(db.SessionStore):
    """Web sessions in the database alone; SESSION_ENGINE names this module.

    A copy in a cache would outlive its session if the cache missed the deletion. Signing out,
    signing in as another customer and a change of the password all delete the session that they
    end. The removal of expired sessions revokes nothing.
    """

    def __init__(self, session_key: str | None = None) -> None:
        # A quoted cookie may hold NUL, which PostgreSQL refuses in a query.
        super().__init__(session_key if session_key and session_key.isalnum() else None)

    def load(self) -> dict[str, Any]:
        """Return the data; in SQL, which costs as much as a cache and a third of Django's query."""
        now = connection.ops.adapt_datetimefield_value(timezone.now())
        with connection.cursor() as cursor:
            cursor.execute(READ_SESSION, [self.session_key, now])
            row = cursor.fetchone()
        if row and row[0] == self.session_key:  # MariaDB finds other spellings
            return dict(self.decode(row[1]))
        self._session_key = None
        return {}

    def delete(self, session_key: str | None = None) -> None:
        """Revoke the tokens first: a session whose tokens cannot be revoked does not end."""
        key = session_key or self.session_key
        if key:
            revoke_session(key)
        super().delete(session_key)


def is_revoked(*, customer_id: int, session: str, issued_at: float) -> bool:
    """Return True if a token issued at this Unix time is revoked, or if that is unknown."""
    try:
        known = _revocations.get(None, _read, fresh=FRESH, max_age=MAX_AGE)
    except STORE_ERRORS:
        return True
    if time.monotonic() - known.read_at > MAX_AGE:
        return True  # the database took longer than that to reply
    changed_at = known.times.get(_customer(customer_id))
    changed = changed_at is not None and issued_at <= changed_at + MARGIN
    return changed or _session(session) in known.times


def _read() -> Revocations:
    read_at = time.monotonic()
    rows = TokenRevocation.objects.filter(revoked_at__gt=_oldest()).order_by("revoked_at")
    return Revocations(read_at, dict(rows.values_list("subject", "revoked_at")))


def revoke_session(session: str) -> None:
    """Revoke the tokens of a web session; `session` is the session cookie's value."""
    _revoke(_session(session))


def revoke_customer(customer_id: int) -> None:
    """Revoke all tokens that a customer has now."""
    _revoke(_customer(customer_id))


def delete_expired() -> None:
    """Delete the revocations whose tokens have all expired."""
    TokenRevocation.objects.filter(revoked_at__lte=_oldest()).delete()


def connect_revocation() -> None:
    """Revoke the tokens of a customer whose account is changed or deleted."""
    pre_save.connect(_on_save, sender=User, dispatch_uid="shop.purchase.tokens")
    post_delete.connect(_on_delete, sender=User, dispatch_uid="shop.purchase.tokens")


def _on_save(*, instance: User, update_fields: frozenset[str] | None, **signal: Any) -> None:
    if update_fields is not None and not update_fields & ENDS_TOKENS:
        return
    stored = User.objects.filter(pk=instance.pk).values(*ENDS_TOKENS).first() or {}
    if any(getattr(instance, name) != value for name, value in stored.items()):
        revoke_customer(instance.pk)


def _on_delete(*, instance: User, **signal: Any) -> None:
    revoke_customer(instance.pk)


def _revoke(subject: str) -> None:
    TokenRevocation.objects.create(subject=subject, revoked_at=int(time.time()))


def _oldest() -> int:
    return int(time.time() - settings.PURCHASE_TOKEN_SECONDS - 2 * MARGIN)


def _customer(customer_id: int) -> str:
    return f"customer:{customer_id}"


def _session(session: str) -> str:
    digest = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()
    return f"session:{digest[:32]}"


def _signer(key: str, session: str) -> Signer:
    # A digest contains no line break, so a part of the cookie cannot pass for a part of the key.
    cookie = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()
    bound = hashlib.sha256(f"{cookie}\n{key}".encode(errors="surrogatepass")).hexdigest()
    return Signer(sep=".", salt=f"shop.purchase.tokens.{bound}")
