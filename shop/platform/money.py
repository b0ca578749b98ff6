"""Amounts of money: their sign, their decimals, and the minor units in which providers count."""

from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.template.defaultfilters import floatformat
from django.utils.translation import gettext as _

SIGNS = {
    "AUD": "A$",
    "CAD": "C$",
    "CHF": "CHF ",
    "CNY": "¥",
    "EUR": "€",
    "GBP": "£",
    "HKD": "HK$",
    "JPY": "¥",
    "KRW": "₩",
    "SGD": "S$",
    "TWD": "NT$",
    "USD": "$",
}
"""The sign of each currency that CURRENCY can name."""
WITHOUT_DECIMALS = ("JPY", "KRW")
"""All others have two: https://docs.stripe.com/currencies#zero-decimal."""


def decimals(currency: str) -> int:
    """Return how many decimals amounts of a currency have."""
    return 0 if currency in WITHOUT_DECIMALS else 2


def minor_units(amount: Decimal, currency: str) -> int:
    """Return the amount in the smallest unit of its currency, e.g. 1990 for 19.90 CNY.

    Raise ValueError for a fraction of that unit, which nobody can pay.
    """
    units = amount.scaleb(decimals(currency))
    if units != int(units):
        raise ValueError(f"{amount} {currency} has too many decimals")
    return int(units)


def check_decimals(amount: Decimal) -> None:
    """Raise ValidationError for a price that nobody can pay in the shop's currency."""
    try:
        minor_units(amount, settings.CURRENCY)
    except ValueError:
        message = _("Prices in %s have no decimals.") % settings.CURRENCY
        raise ValidationError(message, code="decimals") from None


def with_sign(amount: Decimal, currency: str) -> str:
    """Return the amount as pages show it."""
    return SIGNS[currency] + floatformat(amount, f"-{decimals(currency)}g")


def default_currency() -> str:
    """Return the shop's currency."""
    return str(settings.CURRENCY)
