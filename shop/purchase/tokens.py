"""Purchase tokens: signed values that identify the customer of a purchase.

The sale page of a signed-in customer contains one in its form. A token names customer, sale and
expiry. Its signature also covers the form's idempotency key, so that a used token buys nothing
twice, and the session cookie, so that it is worthless in another browser and no other site can send
one. `shop.purchase.revocation` ends a token with its session. A form without a valid token is not
refused: the view then checks session, user and CSRF token.
"""

import hashlib
import time
from typing import NamedTuple

from django.conf import settings
from django.core.signing import BadSignature, Signer

from shop.purchase.revocation import is_revoked


class PurchaseToken(NamedTuple):
    """The content of a valid token."""

    customer_id: int
    sale_id: int
    is_first: bool
    """Hint: the customer had no order in this sale when the token was issued."""


def issue(
    *, customer_id: int, sale_id: int, key: str, session: str, is_first: bool
) -> tuple[str, int]:
    """Return a token and the Unix time of its expiry; `session` is the session cookie's value."""
    expires = int(time.time()) + settings.PURCHASE_TOKEN_SECONDS
    content = f"{customer_id}.{sale_id}.{is_first:d}.{expires}"
    return _signer(key, session).sign(content), expires


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


def is_due(expires: int) -> bool:
    """Return True if less than half of the time is left, so that the page needs a new token."""
    return bool(expires - time.time() < settings.PURCHASE_TOKEN_SECONDS / 2)


def _signer(key: str, session: str) -> Signer:
    # A digest contains no line break, so a part of the cookie cannot pass for a part of the key.
    cookie = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()
    bound = hashlib.sha256(f"{cookie}\n{key}".encode(errors="surrogatepass")).hexdigest()
    return Signer(sep=".", salt=f"shop.purchase.tokens.{bound}")
