"""Amounts of money: their sign, their decimals, and the minor units in which providers count."""

from decimal import Decimal

from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _

SIGNS = {"CNY": "¥", "EUR": "€", "GBP": "£", "HKD": "HK$", "JPY": "¥", "SGD": "S$", "USD": "$"}
"""The sign of each currency that CURRENCY can name."""
DECIMALS = {"JPY": 0}
"""All others have two: https://docs.stripe.com/currencies#zero-decimal."""


def minor_units(amount: Decimal, currency: str) -> int:
    """Return the amount in the smallest unit of its currency, e.g. 1990 for 19.90 CNY.

    Raise ValueError for a fraction of that unit, which cannot be paid.
    """
    units = amount.scaleb(DECIMALS.get(currency, 2))
    if units != int(units):
        raise ValueError(f"{amount} {currency} has too many decimals")
    return int(units)


def check_decimals(amount: Decimal) -> None:
    """Raise ValidationError for a price that cannot be paid in the shop's currency."""
    try:
        minor_units(amount, settings.CURRENCY)
    except ValueError:
        raise ValidationError(_("Prices in %s have no decimals.") % settings.CURRENCY) from None


def with_sign(amount: Decimal, currency: str) -> str:
    """Return the amount as pages show it: alike in English and Chinese, e.g. ¥1,548 or ¥19.90.

    An empty currency is that of the shop.
    """
    currency = currency or default_currency()
    decimals = 0 if amount == int(amount) else DECIMALS.get(currency, 2)
    return f"{SIGNS[currency]}{amount:,.{decimals}f}"


def default_currency() -> str:
    """Return the shop's currency."""
    return str(settings.CURRENCY)
