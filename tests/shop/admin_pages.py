"""Forms and messages of the admin's pages of sales."""

from datetime import datetime

from django.http import HttpResponse
from django.test import Client
from django.utils import timezone

from shop.models import Sale


def act(client: Client, action: str, sale: Sale, **fields: object) -> HttpResponse:
    """Run an action on a sale, as the list of sales does."""
    sent = {"action": action, "_selected_action": sale.pk, **fields}
    return client.post("/admin/shop/sale/", sent)


def times(opens_at: datetime, closes_at: datetime) -> dict[str, str]:
    """Return the form fields of these times."""
    form = {}
    for name, when in (("opens_at", opens_at), ("closes_at", closes_at)):
        local = timezone.localtime(when)
        form |= {f"{name}_0": f"{local:%Y-%m-%d}", f"{name}_1": f"{local:%H:%M:%S}"}
    return form


def messages(response: HttpResponse) -> str:
    """Return the messages that the next page will show."""
    return " ".join(map(str, response.wsgi_request._messages))
