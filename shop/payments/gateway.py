"""A simulated payment provider: the customer chooses its outcome, and it moves no money.

A real payment provider would POST its callbacks to /payments/callback/. This one passes the same
body and signature to the function behind that URL.
"""

import hmac
import json
from collections.abc import Iterator

from django.conf import settings

from shop.models import Payment

Callback = tuple[bytes, str]
"""A body and its signature."""

CHOICES = ("approve", "decline", "silent", "twice")


def callbacks(*, payment: Payment, choice: str) -> Iterator[Callback]:
    """Yield the callbacks that follow the customer's choice, one of CHOICES; none when silent."""
    for _ in range({"silent": 0, "twice": 2}.get(choice, 1)):
        yield callback(payment=payment, approved=choice != "decline")


def callback(*, payment: Payment, approved: bool) -> Callback:
    """Return a signed callback."""
    fields = {"reference": payment.reference, "amount": str(payment.amount), "approved": approved}
    body = json.dumps(fields).encode()
    return body, _sign(body)


def is_genuine(*, body: bytes, signature: str) -> bool:
    """Return True if the payment provider signed this body."""
    return hmac.compare_digest(_sign(body).encode(), signature.encode())


def _sign(body: bytes) -> str:
    return hmac.digest(settings.GATEWAY_SECRET.encode(), b"payment" + body, "sha256").hex()
