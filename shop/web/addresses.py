"""The delivery address of an order: a part of its page, and a page of its own to change it."""

from typing import Any

from django.contrib import messages
from django.forms import ModelForm
from django.forms.models import model_to_dict
from django.http import HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt

from shop.delivery import DeliveryAddress
from shop.errors import BadInput, InvalidTransition, wants_json
from shop.models import Order
from shop.orders.addresses import CLOSED, address_of, can_change, last_address, save_address
from shop.orders.service import get_order
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther

COMPLETE = {"name": "shipping name", "phone": "shipping tel", "street": "shipping street-address"}
COMPLETE |= {"city": "shipping address-level2", "postcode": "shipping postal-code"}
COMPLETE |= {"country": "shipping country-name"}
"""What a browser fills in; see https://html.spec.whatwg.org/#autofill."""


class AddressForm(ModelForm):  # type: ignore[type-arg]
    """The lines of an address."""

    class Meta:
        model = DeliveryAddress
        fields = DeliveryAddress.LINES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, field in self.fields.items():
            field.widget.attrs["autocomplete"] = COMPLETE[name]


def address_context(order: Order) -> dict[str, Any]:
    """Return the context of an order page's part, with a form if the customer may change it.

    It proposes the address of the customer's last order.
    """
    address = address_of(order=order)
    if not can_change(order=order, address=address):
        return {"address": address}
    last = address or last_address(customer=order.customer)
    return {"address": address, "form": AddressForm(initial=model_to_dict(last) if last else {})}


@customer_page
def _show(request: CustomerRequest, number: str) -> HttpResponse:
    return _page(request, get_order(customer=request.user, number=number))


@customer_form
def _change(request: CustomerRequest, number: str) -> HttpResponse:
    order, form = get_order(customer=request.user, number=number), AddressForm(request.POST)
    if form.is_valid():
        save_address(order=order, lines=form.cleaned_data)
        if wants_json(request):
            return JsonResponse({"number": order.number, **form.cleaned_data})
        messages.success(request, _("Saved."))
        return SeeOther(order.get_absolute_url())
    if wants_json(request):
        problems = (f"{name}: {texts[0]}" for name, texts in form.errors.items())
        raise BadInput(" ".join(problems))
    return _page(request, order, form=form)


@csrf_exempt  # `_change` checks the token, after it has checked who has signed in
def address(request: CustomerRequest, number: str) -> HttpResponseBase:
    """Show the address of one of the customer's own orders, or change it."""
    return (_change if request.method == "POST" else _show)(request, number=number)


def _page(request: CustomerRequest, order: Order, **invalid: AddressForm) -> HttpResponse:
    context = {"order": order, **address_context(order), **invalid}
    if "form" not in context:
        raise InvalidTransition(CLOSED)
    return render(request, "shop/address.html", context, status=400 if invalid else 200)
