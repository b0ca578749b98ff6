"""Purchase tickets: what the sale page gives a signed-in buyer, and the turnstile reads.

A ticket says who buys in which sale, until when. Its signature also covers the form's idempotency
key, so that a used ticket buys nothing twice, and the session cookie, so that it is worth nothing
in another browser and no other site can send one. Whoever has none, or an old one, is not refused:
Django then looks at session, user and forgery itself.
"""

import hashlib
import hmac
import re
import time
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from functools import cache

from django.conf import settings

_TEXT = re.compile(r"(\d{1,19})\.(\d{1,19})\.([01])\.(\d{1,12})\.([\w-]{43})", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """What a good ticket says."""

    customer_id: int
    sale_id: int
    is_first: bool
    """Whether the customer had nothing in this sale when it was issued: a hint, no promise."""
    expires: int
    """Unix time."""


def issue(
    *, customer_id: int, sale_id: int, key: str, session: str, is_first: bool
) -> tuple[str, int]:
    """A ticket, and when it expires; `session` is the value of the session cookie."""
    expires = int(time.time()) + settings.PURCHASE_TOKEN_SECONDS
    head = f"{customer_id}.{sale_id}.{is_first:d}.{expires}"
    return f"{head}.{_sign(head, key, session)}", expires


def read(text: str, *, key: str, session: str) -> Ticket | None:
    """The ticket, when it was issued for this key and this session and is not over."""
    found = _TEXT.fullmatch(text)
    if found is None or not session:
        return None
    customer_id, sale_id, is_first, expires = map(int, found.groups()[:4])
    if expires < time.time():
        return None
    if not hmac.compare_digest(found[5], _sign(text.rpartition(".")[0], key, session)):
        return None
    return Ticket(
        customer_id=customer_id, sale_id=sale_id, is_first=bool(is_first), expires=expires
    )


def is_due(expires: int) -> bool:
    """Whether a ticket that ends at `expires` should be issued anew: half its time is over."""
    return bool(expires - time.time() < settings.PURCHASE_TOKEN_SECONDS / 2)


def _sign(head: str, key: str, session: str) -> str:
    # The key may be any text and comes last; the rest has no line breaks.
    cookie = hashlib.sha256(session.encode(errors="surrogatepass")).hexdigest()
    told = f"{head}\n{cookie}\n{key}".encode(errors="surrogatepass")
    signature = hmac.digest(_secret(settings.SECRET_KEY), told, "sha256")
    return urlsafe_b64encode(signature)[:-1].decode()


@cache
def _secret(key: str) -> bytes:
    return hmac.digest(key.encode(), b"shop.purchase.tokens", "sha256")
