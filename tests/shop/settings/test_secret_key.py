"""Rotation of SECRET_KEY: signatures of the previous key stay valid, and two keys live together."""

import pytest
from django.core.cache import caches
from django.test import Client

from shop.models import User
from tests.shop.making import a_sale
from tests.shop.web.wsgi_browser import Browser, alone, li

__all__ = ["alone", "li"]
pytestmark = pytest.mark.django_db

OLD, NEW = "old-" * 10, "new-" * 10
PASSWORD = "a-red-kettle-9"  # noqa: S105


def use(settings, key: str, *fallbacks: str) -> None:
    """Start the process again with these keys; the cache keeps sessions without a signature."""
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = key, list(fallbacks)
    for cache in caches.all():
        cache.clear()


@pytest.fixture
def customer(settings) -> Client:
    """Return a browser that signed in under the old key."""
    use(settings, OLD)
    User.objects.create_user("li", password=PASSWORD)
    client = Client(enforce_csrf_checks=True)
    client.get("/accounts/sign-in/")
    assert post(client, "/accounts/sign-in/", username="li", password=PASSWORD)["Location"] == "/"
    return client


def post(client: Client, path: str, **form: str):
    secret = client.cookies["csrftoken"].value
    return client.post(path, {**form, "csrfmiddlewaretoken": secret})


def is_signed_in(client: Client) -> bool:
    return client.get("/accounts/profile/").status_code == 200


def test_session_and_forms_survive_a_rotation(customer, settings):
    secret = customer.cookies["csrftoken"].value
    use(settings, NEW, OLD)
    form = {"first_name": "Li", "csrfmiddlewaretoken": secret}
    assert customer.post("/accounts/profile/", form)["Location"] == "/accounts/profile/"
    use(settings, NEW)
    assert is_signed_in(customer), "the first request has renewed the session"


def test_session_ends_without_the_fallback(customer, settings):
    use(settings, NEW)
    assert not is_signed_in(customer)


def test_processes_with_either_key_keep_each_others_sessions(customer, settings):
    """As while one process after the other restarts; each knows the other's key."""
    for _ in range(3):
        use(settings, NEW, OLD)
        assert is_signed_in(customer)
        use(settings, OLD, NEW)
        assert is_signed_in(customer)


@pytest.mark.parametrize(("fallbacks", "status"), [((OLD,), 201), ((), 401)])
def test_purchase_token_survives_a_rotation(fallbacks, status, settings):
    use(settings, OLD)
    sale, browser = a_sale(), Browser()
    form = {**browser.form(sale), "csrfmiddlewaretoken": ""}  # the view refuses it
    use(settings, NEW, *fallbacks)
    sent = browser.json(sale, form).status
    assert sent == status
