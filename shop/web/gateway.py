"""The URLs and pages of the simulated payment provider, which only the lab's settings enable."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.errors import BadInput, ShopError, wants_json
from shop.models import Order
from shop.orders.service import get_order
from shop.payments import gateway
from shop.payments.service import get_payment, start_payment
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import SeeOther
from shop.web.orders import change_order, refused


@customer_form
def pay(request: CustomerRequest, number: str) -> HttpResponse:
    """Pay at once: the payment provider approves without asking the customer."""
    return change_order(request, number, gateway.pay_at_once, Order.Status.PAID)


@customer_form
def start(request: CustomerRequest, number: str) -> HttpResponse:
    """Start the payment, or continue an open one: 201 with JSON, or 303 to the payment provider."""
    order = get_order(customer=request.user, number=number)
    try:
        url = reverse("gateway", args=[start_payment(order=order).reference])
    except ShopError as error:
        return refused(request, number, error)
    return JsonResponse({"url": url}, status=201) if wants_json(request) else SeeOther(url)


@customer_page
def page(request: CustomerRequest, reference: str) -> HttpResponse:
    """Let the customer choose the outcome of the payment; once decided, go back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    if not payment.is_open:
        return redirect(payment.order)
    return render(request, "shop/gateway.html", {"payment": payment, "now": timezone.now()})


@customer_form
def decide(request: CustomerRequest, reference: str) -> HttpResponse:
    """Send the callbacks of the chosen outcome, then send the customer back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    choice = request.POST.get("choice", "")
    if choice not in gateway.CHOICES:
        raise BadInput(_("Choose an outcome of the payment."))
    for body, signature in gateway.callbacks(payment=payment, choice=choice):
        gateway.receive(body, signature)
    return SeeOther(payment.order.get_absolute_url())


@csrf_exempt
@require_POST
def callback(request: HttpRequest) -> HttpResponse:
    """Receive a callback; its signature is in X-Gateway-Signature."""
    payment = gateway.receive(request.body, request.headers.get("X-Gateway-Signature", ""))
    return JsonResponse({"reference": payment.reference, "status": payment.status})


_all = [
    path("orders/<slug:number>/pay/", pay, name="pay"),
    path("orders/<slug:number>/payment/", start, name="payment"),
    path("gateway/<slug:reference>/", page, name="gateway"),
    path("gateway/<slug:reference>/answer/", decide, name="gateway-answer"),
    path("payments/callback/", callback, name="payment-callback"),
]
urlpatterns = _all if gateway.is_enabled() else []
