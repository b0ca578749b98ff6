"""A stand-in for a payment service: it answers as the customer tells it to, and moves no money.

A real one is another company's site and would POST its callbacks to /payments/callback/; this one
hands the very same bytes and signature to the service behind that address.
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
    """What the service sends once the customer has chosen one of CHOICES; nothing when silent."""
    for _ in range({"silent": 0, "twice": 2}.get(choice, 1)):
        yield callback(payment=payment, approved=choice != "decline")


def callback(*, payment: Payment, approved: bool) -> Callback:
    """One message of the service, signed."""
    said = {"reference": payment.reference, "amount": str(payment.amount), "approved": approved}
    body = json.dumps(said).encode()
    return body, _sign(body)


def is_genuine(*, body: bytes, signature: str) -> bool:
    """Whether the service has signed this."""
    return hmac.compare_digest(_sign(body).encode(), signature.encode())


def _sign(body: bytes) -> str:
    return hmac.digest(settings.GATEWAY_SECRET.encode(), b"payment" + body, "sha256").hex()
