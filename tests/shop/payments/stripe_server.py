"""The process of `local_stripe`, and what tests do with it as Stripe, a customer or a browser."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests
from django.conf import settings as django_settings
from django.test import override_settings

from devservers import HOST, Server
from shop.models import Payment
from shop.payments.providers import make_provider

ROOT = Path(__file__).resolve().parents[3]
GOOD, DECLINED = "4242424242424242", "4000000000000341"
KEY, PUBLIC, SECRET = "sk_test_local", "pk_test_local", "whsec_local"


class LocalStripe(Server):
    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        return {
            "PAYMENT_PROVIDER": "stripe",
            "STRIPE_API_URL": self.url,
            "STRIPE_SCRIPT_URL": f"{self.url}/js.stripe.com/element/",
            "STRIPE_SECRET_KEY": KEY,
            "STRIPE_PUBLISHABLE_KEY": PUBLIC,
            "STRIPE_WEBHOOK_SECRET": SECRET,
        }

    def command(self) -> list[str]:
        module = [sys.executable, "-m", "tests.shop.payments.local_stripe", str(self.port)]
        return ["env", f"PYTHONPATH={ROOT}", *module, *self.config]

    def is_ready(self) -> bool:
        return b" 200 " in self.send(b"GET /_config/deliveries HTTP/1.0\r\nHost: x\r\n\r\n")

    def get(self, path: str, **query: object) -> Any:
        return requests.get(f"{self.url}{path}", query, auth=(KEY, ""), timeout=30).json()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        reply = requests.post(f"{self.url}{path}", json=body, auth=(KEY, ""), timeout=30)
        return reply.json() if reply.content else None

    def send_webhooks_to(self, url: str) -> None:
        self.post("/_config/webhooks/shop", {"url": url, "secret": SECRET})

    def pay(self, payment: Payment, card: str = GOOD) -> str:
        """Pay as the browser does; return the status or the refusal."""
        intent = self.get(f"/v1/payment_intents/{payment.provider_id}")
        return self.pay_intent(payment.provider_id, intent["client_secret"], card)

    def pay_intent(self, intent: str, secret: str, card: str = GOOD) -> str:
        number = {"number": card, "exp_month": 12, "exp_year": 2040, "cvc": "123"}
        sent = {"key": PUBLIC, "client_secret": secret, "card": number}
        reply = self.post(f"/v1/payment_intents/{intent}/_authenticate/card", sent)
        return reply["error"]["message"] if "error" in reply else reply["status"]

    def refunds(self, payment: Payment) -> list[int]:
        """Return the amounts that were refunded."""
        found = self.get("/v1/refunds", payment_intent=payment.provider_id, limit=100)
        return [one["amount"] for one in found["data"]]


@contextmanager
def in_use(stripe: LocalStripe) -> Iterator[LocalStripe]:
    """Make it the payment provider of this process."""
    paths = {**django_settings.PAYMENT_PROVIDERS}
    make_provider.cache_clear()
    with override_settings(**stripe.settings, PAYMENT_PROVIDERS=paths, STRIPE_TIMEOUT=20.0):
        yield stripe
    make_provider.cache_clear()
