"""What the shop needs of a payment provider, and the provider that PAYMENT_PROVIDER names."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string
from django.utils.translation import gettext_lazy as _

from locking.fork import after_fork_in_child
from shop.errors import ServiceUnavailable, ShopError
from shop.models import Payment


class State(Enum):
    """The state of a payment at its provider."""

    OPEN = "open"
    """The customer may still pay."""
    PAID = "paid"
    """The money was taken."""
    CLOSED = "closed"
    """It was not paid, and never will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A payment as its provider reports it."""

    reference: str
    state: State
    amount: int
    """In minor units of the currency."""
    currency: str
    """Its ISO code, in capitals."""
    page: Mapping[str, Any] = field(default_factory=dict)
    """Context of the provider's template."""


class ProviderUnavailable(ServiceUnavailable):
    """The payment provider does not respond, or cannot do what was asked now."""

    code = "provider_down"
    title = _("The payment provider isn't responding")
    advice = _("Your order is kept. Please try again in a moment; you won't be charged twice.")


class ProviderRefusal(ShopError):
    """The payment provider replied that it does not do what was asked."""

    code = "provider_refused"
    title = _("This payment isn't possible")
    advice = _("The payment provider refused it. Please contact the shop.")


class Provider(ABC):
    """A payment provider. Each call takes a bounded time.

    Each may raise ProviderUnavailable, or ProviderRefusal if it would fail again.

    Calls may be repeated after a lost reply: none charges or refunds twice. `report`, `close` and
    `refund` raise NotFound for a payment that the provider does not know.
    """

    template: str
    """The page on which the customer pays, rendered with `payment`, `now` and the report's page."""
    sources: Mapping[str, str] = {}
    """What pages need of the Content-Security-Policy, by directive."""
    features: str = ""
    """Origins that may use the browser's payment features (Permissions-Policy)."""

    @abstractmethod
    def start(self, payment: Payment) -> str:
        """Return the provider's id of a new payment; `payment` is not saved yet."""

    @abstractmethod
    def report(self, payment: Payment) -> Report:
        """Return the present state of a payment."""

    @abstractmethod
    def close(self, payment: Payment) -> Report:
        """End a payment unless it was paid or its bank is deciding, and return its state."""

    @abstractmethod
    def refund(self, payment: Payment) -> bool:
        """Return the whole amount to the customer; False until the provider has done it."""

    @abstractmethod
    def receive(self, body: bytes, headers: Mapping[str, str]) -> Report | None:
        """Return the report in a webhook; None if the shop has nothing to do.

        Raise Forgery for a wrong or stale signature, BadInput for a malformed body.
        """


def can_pay() -> bool:
    """Return True if the shop has a payment provider."""
    return settings.PAYMENT_PROVIDER not in ("", "none")


def provider() -> Provider:
    """Return the payment provider of the shop, which must have one."""
    return make_provider(settings.PAYMENT_PROVIDERS[settings.PAYMENT_PROVIDER])


@cache
def make_provider(path: str) -> Provider:
    """Return the provider of this process at an import path."""
    made: Provider = import_string(path)()
    return made


after_fork_in_child(make_provider.cache_clear)  # connections are those of one process
