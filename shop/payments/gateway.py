"""A simulated payment provider for the lab: the customer chooses its outcome; it moves no money.

A real payment provider would POST its callbacks to /payments/callback/. This one passes the same
body and signature to the function behind that URL.
"""

import hmac
import json
from collections.abc import Iterator, Sequence

from django.conf import settings
from django.utils.crypto import salted_hmac
from django.utils.translation import gettext as _

from inventory.statements import Statement
from shop.errors import BadInput, Forgery, InvalidTransition
from shop.models import Order, Payment
from shop.payments.service import approve, report_outcome, start_payment

CHOICES = ("approve", "decline", "silent", "twice")

Callback = tuple[bytes, str]
"""A body and its signature."""


def is_enabled() -> bool:
    """Return True if this is the payment provider of the shop."""
    return str(settings.PAYMENT_PROVIDER) == "simulated"


def callbacks(*, payment: Payment, choice: str) -> Iterator[Callback]:
    """Yield the callbacks that follow the customer's choice, one of CHOICES; none when silent."""
    for _number in range({"silent": 0, "twice": 2}.get(choice, 1)):
        yield callback(payment=payment, approved=choice != "decline")


def callback(*, payment: Payment, approved: bool) -> Callback:
    """Return a signed callback."""
    fields = {"reference": payment.reference, "amount": str(payment.amount), "approved": approved}
    body = json.dumps(fields).encode()
    return body, _sign(body)


def receive(body: bytes, signature: str) -> Payment:
    """Apply a callback; a repeated one changes nothing.

    Raises Forgery for a wrong signature, BadInput for a malformed body or a wrong amount, and
    NotFound for an unknown payment.
    """
    if not hmac.compare_digest(_sign(body).encode(), signature.encode()):
        raise Forgery
    try:
        fields = json.loads(body)
        reference, amount, approved = (fields[name] for name in ("reference", "amount", "approved"))
    except (ValueError, LookupError, TypeError):
        raise BadInput(_("The body is not JSON.")) from None
    return report_outcome(reference=str(reference), amount=amount, approved=approved)


def pay_at_once(*, order: Order, also: Sequence[Statement] = ()) -> None:
    """Pay an order without asking the customer, and write `also` in the same transaction.

    Raises InvalidTransition unless the order is payable.
    """
    if not approve(start_payment(order=order), also):
        raise InvalidTransition


def _sign(body: bytes) -> str:
    return salted_hmac("shop.payments.gateway", body, algorithm="sha256").hexdigest()
