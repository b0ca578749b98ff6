"""The name of the shop and its footer are settings."""

from django.template.loader import render_to_string

from shop.web.context import banners


def test_pages_name_the_shop_and_its_footer(rf, settings) -> None:
    settings.SHOP_NAME, settings.SHOP_FOOTER = "Tea & Co", "Tea & Co Ltd, Bath"
    settings.SOURCE_URL = "https://example.com/code"
    request = rf.get("/")
    page = render_to_string("base.html", banners(request), request)
    assert "<title> · Tea &amp; Co</title>" in page
    assert "Tea &amp; Co Ltd, Bath<br>" in page
    assert '<a href="https://example.com/code">Source code</a>' in page
    assert "Demo shop" not in page
