"""The stand-in payment service's page, and the address to which a real one would call back."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt

from shop.errors import BadInput
from shop.payments import gateway
from shop.payments.service import get_payment, receive
from shop.web.decorators import CustomerRequest, acts, only, shows_own
from shop.web.purchase import SeeOther


@never_cache
@shows_own
def show(request: CustomerRequest, reference: str) -> HttpResponse:
    """Where the customer decides how the payment goes; past that, back to the order."""
    payment = get_payment(customer=request.user, reference=reference)
    if not payment.is_open:
        return redirect(payment.order)
    return render(request, "shop/gateway.html", {"payment": payment, "now": timezone.now()})


@never_cache
@acts
def decide(request: CustomerRequest, reference: str) -> HttpResponse:
    """Call back as the customer has chosen, and send the customer back to the shop."""
    payment = get_payment(customer=request.user, reference=reference)
    choice = request.POST.get("choice", "")
    if choice not in gateway.CHOICES:
        raise BadInput(_("Choose how the payment goes."))
    for body, signature in gateway.callbacks(payment=payment, choice=choice):
        receive(body, signature)
    return SeeOther(payment.order.get_absolute_url())


@csrf_exempt
@only("POST")
def callback(request: HttpRequest) -> HttpResponse:
    """A payment service's callback, with its signature in X-Gateway-Signature."""
    payment = receive(request.body, request.headers.get("X-Gateway-Signature", ""))
    return JsonResponse({"reference": payment.reference, "status": payment.status})
