"""The Content-Security-Policy: on every answer, strict, and a view may set its own."""

import pytest

from shop.platform.headers import POLICY

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    "path",
    ["/", "/products/", "/accounts/sign-in/", "/admin/login/", "/nowhere", "/livez", "/%ff"],
)
def test_every_response_has_the_policies(client, path):
    """The pages contain the customer's name: before, a cache could keep some of them."""
    headers = client.get(path).headers
    assert headers["Content-Security-Policy"] == POLICY
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert "camera=()" in headers["Permissions-Policy"]
    assert {"private", "no-cache"} <= set(headers["Cache-Control"].split(", "))
