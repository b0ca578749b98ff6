"""Order pages: list, detail, cancellation and delivery address."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.forms import ModelForm
from django.forms.models import model_to_dict
from django.http import HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import get_language
from django.utils.translation import gettext as _

from inventory.statements import insert
from locking.exceptions import IdempotencyError, KeyInFlight
from locking.idempotency import Attempt
from locking.models import IdempotencyKey
from shop.delivery import DeliveryAddress
from shop.errors import BadInput, InFlight, KeyReused, ShopError, answer, wants_json
from shop.models import Order, Payment
from shop.orders.addresses import can_change, last_address, save_address
from shop.orders.service import cancel_order, get_order, orders_of
from shop.payments.providers import can_pay, provider
from shop.payments.service import is_returnable, return_order
from shop.platform.headers import allow
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther, key_of

PAGE_SIZE = 20
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
        if get_language() == "zh-hans":  # the region before the street
            self.order_fields(["name", "phone", "city"])
        for name, field in self.fields.items():
            field.widget.attrs["autocomplete"] = COMPLETE[name]


@customer_page
def orders(request: CustomerRequest) -> HttpResponse:
    """List the customer's own orders."""
    page = Paginator(orders_of(customer=request.user), PAGE_SIZE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


@customer_page
def order(request: CustomerRequest, number: str) -> HttpResponse:
    """Show one of the customer's own orders."""
    order = get_order(customer=request.user, number=number)
    if wants_json(request):
        state = {"status": order.status, "payment": _payment_state(order.payments.first())}
        return JsonResponse({**order.receipt, **state})
    return allow_payment(render(request, "shop/order.html", _order_context(order)))


def _payment_state(payment: Payment | None) -> dict[str, str] | None:
    if payment is None:
        return None
    return {
        "status": payment.outcome,
        "amount": str(payment.amount),
        "currency": payment.currency,
        "answer_by": payment.answer_by.isoformat(timespec="milliseconds"),
    }


@customer_form
def cancel(request: CustomerRequest, number: str) -> HttpResponse:
    """Cancel an unpaid order."""
    return change_order(request, number, cancel_order, Order.Status.CANCELLED)


@customer_form
def refund(request: CustomerRequest, number: str) -> HttpResponse:
    """Cancel a paid order, and refund it."""
    return change_order(request, number, return_order, Order.Status.REFUNDED)


def change_order(
    request: CustomerRequest, number: str, service: Callable[..., None], status: str
) -> HttpResponse:
    """Change the order once per idempotency key; the response is stored with the change."""
    order = get_order(customer=request.user, number=number)
    key = key_of(request)
    if wants_json(request):
        response: HttpResponse = JsonResponse({**order.receipt, "status": status})
    else:
        response = SeeOther(order.get_absolute_url())
    try:
        with Attempt(user=request.user.pk, key=key, request=request.path.encode()) as attempt:
            if attempt.response is None:
                stored = insert(IdempotencyKey, **attempt.row(response))
                service(order=order, also=[stored])
    except ShopError as error:
        return refused(request, number, error, key)
    except IdempotencyError as error:
        reused = KeyReused(_("Open the order again to see its state, or to try again."))
        refusal = InFlight() if isinstance(error, KeyInFlight) else reused
        return refused(request, number, refusal, key)
    assert attempt.response is not None
    return attempt.response.to_http()


def refused(request: CustomerRequest, number: str, error: ShopError, key: str = "") -> HttpResponse:
    """Return the order page with the refusal; raise the refusal for a client that wants JSON."""
    if wants_json(request):
        raise error
    order = get_order(customer=request.user, number=number)
    context = _order_context(order, key)
    return allow_payment(answer(request, error, page="shop/order.html", context=context))


def allow_payment(response: HttpResponse) -> HttpResponse:
    """Allow the page of an order or a payment what the payment provider needs."""
    return allow(response, provider().sources, provider().features) if can_pay() else response


def _order_context(order: Order, key: str = "") -> dict[str, Any]:
    """Return the context of the order page; `key` is that of a form that may be sent again.

    A form for the address proposes that of the customer's last order.
    """
    payments, address = list(order.payments.all()), getattr(order, "address", None)
    context = {
        "order": order,
        "payments": payments,
        "payment": next(iter(payments), None),
        "address": address,
        "returnable": is_returnable(order=order, address=address),
        "now": timezone.now(),
        "key": key or str(uuid.uuid4()),
        # The header's deadline may be another order's, and contradict the page's own.
        "time_to_pay": None,
    }
    if can_change(order=order, address=address):
        last = address or last_address(customer=order.customer)
        context["form"] = AddressForm(initial=model_to_dict(last) if last else {})
    return context


@customer_form
def address(request: CustomerRequest, number: str) -> HttpResponse:
    """Save the delivery address of one of the customer's own orders."""
    order, form = get_order(customer=request.user, number=number), AddressForm(request.POST)
    if form.is_valid():
        save_address(order=order, lines=form.cleaned_data)
        if wants_json(request):
            return JsonResponse({"number": order.number, **form.cleaned_data})
        messages.success(request, _("Saved."))
        return SeeOther(order.get_absolute_url())
    if wants_json(request):
        raise BadInput(" ".join(f"{name}: {texts[0]}" for name, texts in form.errors.items()))
    context = {**_order_context(order), "form": form}
    return allow_payment(render(request, "shop/order.html", context, status=400))
