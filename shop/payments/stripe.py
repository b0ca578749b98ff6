"""Payments through Stripe: PaymentIntents, refunds and signed webhooks.

https://docs.stripe.com/payments/payment-intents; docs/how-to/take-payments.md sets it up.
"""

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import stripe
from django.conf import settings
from django.utils.translation import gettext as _

from inventory.money import minor_units
from shop.errors import BadInput, Forgery, NotFound, Overloaded
from shop.models import Payment
from shop.payments.providers import Provider, ProviderRefusal, ProviderUnavailable, Report, State

logger = logging.getLogger("shop")

DECIDED = {"succeeded": State.PAID, "canceled": State.CLOSED}
IN_PROGRESS = ("processing", "requires_capture")
MAX_AGE = 300
"""Seconds after which a signature is refused."""
RETRY_AFTER = 600
"""Seconds after which a refund that Stripe refused is tried again."""


class Stripe(Provider):
    """Stripe's API, through its client library.

    At most half of a process's threads wait for it, so that a silent Stripe does not stop sales.
    """

    template = "shop/stripe.html"

    def __init__(self) -> None:
        self._api = stripe.StripeClient(
            settings.STRIPE_SECRET_KEY,
            base_addresses={"api": settings.STRIPE_API_URL},
            max_network_retries=1,  # with the same idempotency key
            http_client=stripe.RequestsClient(timeout=settings.STRIPE_TIMEOUT),
        ).v1
        self._slots = threading.BoundedSemaphore(max(1, settings.WEB_THREADS // 2))
        # https://docs.stripe.com/security/guide#content-security-policy
        self.features = "/".join(settings.STRIPE_SCRIPT_URL.split("/")[:3])
        scripts = f"{self.features} https://*.js.stripe.com"
        self.sources = {
            "script-src": scripts,
            "frame-src": f"{scripts} https://hooks.stripe.com",
            "connect-src": settings.STRIPE_API_URL,
            "img-src": "https://*.stripe.com",
        }

    def start(self, payment: Payment) -> str:
        """Create a PaymentIntent; the payment's reference is its idempotency key."""
        with self._call():
            intent = self._api.payment_intents.create(
                {
                    "amount": minor_units(payment.amount, payment.currency),
                    "currency": payment.currency.lower(),
                    "metadata": {"reference": payment.reference, "order": payment.order.number},
                },
                {"idempotency_key": payment.reference},
            )
        return intent.id

    def report(self, payment: Payment) -> Report:
        """Retrieve the PaymentIntent."""
        with self._call():
            return _report(self._api.payment_intents.retrieve(payment.provider_id).to_dict())

    def close(self, payment: Payment) -> Report:
        """Cancel the PaymentIntent unless it is decided or in progress."""
        report = self.report(payment)
        if report.state == State.OPEN and not report.page["in_progress"]:
            with self._call():
                report = _report(self._api.payment_intents.cancel(payment.provider_id).to_dict())
        return report

    def refund(self, payment: Payment) -> bool:
        """Refund what earlier refunds, also of the dashboard, have not; some of them may fail."""
        intent, total = payment.provider_id, minor_units(payment.amount, payment.currency)
        with self._call():
            made = self._api.refunds.list({"payment_intent": intent, "limit": 100}).data
            live = sum(one.amount for one in made if one.status not in ("failed", "canceled"))
            if live < total:
                # Stripe repeats its reply to a key for a day, and a refusal as well.
                tried = f"{len(made)}-{int(time.time()) // RETRY_AFTER}"
                rest = self._api.refunds.create(
                    {"payment_intent": intent, "amount": total - live},
                    {"idempotency_key": f"{payment.reference}-refund-{tried}"},
                )
                made.append(rest)
        return sum(one.amount for one in made if one.status == "succeeded") >= total

    def receive(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        """Verify a webhook's signature and its time; only a success is of interest.

        A declined card leaves the PaymentIntent open: the customer may try another one.
        """
        signature, secret = headers.get("Stripe-Signature"), settings.STRIPE_WEBHOOK_SECRET
        try:
            stripe.WebhookSignature.verify_header(body, signature, secret, MAX_AGE)
        except (stripe.SignatureVerificationError, ValueError, TypeError):
            raise Forgery from None
        try:
            event = json.loads(body)
            intent = event["data"]["object"]
            if event["type"] != "payment_intent.succeeded" or "reference" not in intent["metadata"]:
                return None
            return _report(intent)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise BadInput(_("The body is not JSON.")) from None

    @contextmanager
    def _call(self) -> Iterator[None]:
        if not self._slots.acquire(blocking=False):
            raise Overloaded
        try:
            yield
        except stripe.InvalidRequestError as error:
            if error.code == "resource_missing" or error.http_status == 404:
                raise NotFound from error
            logger.error("Stripe refused a call: %r", error)
            raise ProviderRefusal from error
        except stripe.StripeError as error:
            logger.warning("Stripe is unavailable: %r", error)
            raise ProviderUnavailable from error
        finally:
            self._slots.release()


def _report(intent: dict[str, Any]) -> Report:
    error = intent.get("last_payment_error") or {}
    return Report(
        reference=intent["metadata"]["reference"],
        state=DECIDED.get(intent["status"], State.OPEN),
        amount=intent.get("amount_received") or intent["amount"],
        currency=intent["currency"].upper(),
        page={
            "script": settings.STRIPE_SCRIPT_URL,
            "key": settings.STRIPE_PUBLISHABLE_KEY,
            "secret": intent.get("client_secret"),
            "in_progress": intent["status"] in IN_PROGRESS,
            "problem": error.get("message", ""),
        },
    )
