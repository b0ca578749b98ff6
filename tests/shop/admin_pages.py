"""Forms and messages of the admin's pages of sales."""

from datetime import datetime
from html.parser import HTMLParser

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


def correct(client: Client, sale: Sale, **changed: object) -> HttpResponse:
    """Send the form of a sale's page with other values."""
    form = {"price": sale.price, "limit_per_customer": sale.limit_per_customer}
    form |= times(sale.opens_at, sale.closes_at)
    return client.post(f"/admin/shop/sale/{sale.pk}/change/", {**form, **changed})


def messages(response: HttpResponse) -> str:
    """Return the messages that the next page will show."""
    return " ".join(map(str, response.wsgi_request._messages))


class _Fields(HTMLParser):
    """The fields of a page's forms, as a browser would send them unchanged."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self._name = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, kind = given.get("name"), given.get("type")
        if tag in ("select", "textarea"):
            self._name = name or ""
            self.found[self._name] = ""
        elif tag == "option" and "selected" in given:
            self.found[self._name] = given["value"] or ""
        elif tag == "input" and name and kind not in ("submit", "file"):
            if kind != "checkbox":
                self.found[name] = given.get("value") or ""
            elif "checked" in given:
                self.found[name] = given.get("value") or "on"

    def handle_data(self, data: str) -> None:
        if self.lasttag == "textarea" and self._name:
            self.found[self._name] = data.strip()
            self._name = ""


def fields_of(response: HttpResponse) -> dict[str, str]:
    """Return what a browser would send if nothing were changed."""
    return _Fields(response.text).found
