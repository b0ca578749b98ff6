"""Amounts on pages, and the other settings of a shop of one's own."""

from decimal import Decimal

import pytest
from django.template.loader import render_to_string
from django.utils.translation import override

from shop.platform.currency import money
from shop.web.context import banners


@pytest.mark.parametrize(
    ("currency", "amount", "text"),
    [
        ("CNY", Decimal("1999.00"), "¥1,999"),
        ("CNY", Decimal("19.80"), "¥19.80"),
        ("USD", Decimal("1234567.5"), "$1,234,567.50"),
        ("JPY", 2000, "¥2,000"),
        ("CHF", Decimal("0.05"), "CHF\N{NO-BREAK SPACE}0.05"),
    ],
)
def test_amount_has_the_sign_of_the_currency(currency, amount, text, settings) -> None:
    settings.CURRENCY = currency
    for language in ("en", "zh-hans"):
        with override(language):
            assert money(amount) == text


def test_pages_name_the_shop_and_its_footer(rf, settings) -> None:
    settings.SHOP_NAME, settings.SHOP_FOOTER = "Tea & Co", "Tea & Co Ltd, Bath"
    request = rf.get("/")
    page = render_to_string("base.html", banners(request), request)
    assert "<title> · Tea &amp; Co</title>" in page
    assert "Tea &amp; Co Ltd, Bath<br>" in page
    assert "Demo shop" not in page
