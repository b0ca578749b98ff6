"""Amounts of the shop's currency, as its pages show them."""

from decimal import Decimal

from django.conf import settings

SIGNS = {
    "AUD": "A$",
    "BRL": "R$",
    "CAD": "C$",
    "CNY": "¥",
    "EUR": "€",
    "GBP": "£",
    "HKD": "HK$",
    "INR": "₹",
    "JPY": "¥",
    "KRW": "₩",
    "SGD": "S$",
    "TWD": "NT$",
    "USD": "$",
}
"""Signs by ISO 4217 code; any other currency is shown by its code."""


def money(amount: Decimal | int) -> str:
    """Return an amount with the sign of the currency; whole amounts have no decimals."""
    sign = SIGNS.get(settings.CURRENCY, f"{settings.CURRENCY}\N{NO-BREAK SPACE}")
    return f"{sign}{amount:,.2f}".removesuffix(".00")
