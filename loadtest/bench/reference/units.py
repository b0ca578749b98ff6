"""A second reference implementation: one row per unit, taken with SKIP LOCKED (MariaDB).

Shopify describes this design (https://shopify.engineering/scaling-inventory-reservations). No two
purchases wait for the same row. A purchase is one message, as the shop's own; limit, key and order
are guarded by the shop's tables. A refusal is not final: the last free row may be locked by a
purchase that fails later.
"""

import re
from collections.abc import Callable, Iterator
from datetime import timedelta

from django.conf import settings
from django.db import IntegrityError, OperationalError, connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone

from inventory.exceptions import OutOfStock
from inventory.statements import Statement, insert
from inventory.stock import commit
from shop.errors import KeyReused, LimitReached, Overloaded, ShopError, SignInFirst, SoldOut
from shop.models import CustomerQuota, Order, Sale, digest, new_order_number
from shop.purchase import tokens
from shop.purchase.admission import admit, cached_sale
from shop.sales.purchase_request import PurchaseRequest, take_quota

PATH = "/units/{}/buy/"
BUY = re.compile(PATH.format("([-\\w]+)"))
CREATE = """
    CREATE TABLE IF NOT EXISTS lab_unit (sale_id BIGINT, number INT, order_number VARCHAR(32) NULL,
    PRIMARY KEY (sale_id, number), KEY free_units (sale_id, order_number))
"""
FILL = "INSERT INTO lab_unit (sale_id, number) SELECT %s, seq FROM seq_1_to_{:d}"
FORGET = "SET @unit = NULL"
FIND = """
    SELECT number INTO @unit FROM lab_unit WHERE sale_id = %s AND order_number IS NULL
    LIMIT 1 FOR UPDATE SKIP LOCKED
"""
TAKE = "UPDATE lab_unit SET order_number = %s WHERE sale_id = %s AND number = @unit"
COUNTS = "SELECT COUNT(*), COUNT(order_number) FROM lab_unit WHERE sale_id = %s"
WRONG = """
    SELECT COUNT(*) FROM shop_order o LEFT JOIN shop_customerquota q
    ON q.customer_id = o.customer_id AND q.sale_id = o.sale_id
    WHERE o.sale_id = %s AND (q.taken IS NULL OR o.quantity <>
        (SELECT COUNT(*) FROM lab_unit u WHERE u.sale_id = o.sale_id AND u.order_number = o.number))
"""


def create_units(*, sale: Sale, count: int) -> None:
    """Create the rows of a sale's units, and the table if it is missing."""
    with connection.cursor() as cursor:
        cursor.execute(CREATE)
        cursor.execute(FILL.format(count), [sale.pk])


def place_order(*, customer_id: int, sale: Sale, quantity: int, key: str) -> str:
    """Buy `quantity` units, once for each key; return the number of the order.

    Raise SoldOut, LimitReached, KeyReused, or Overloaded if nothing was decided.
    """
    if quantity > sale.limit_per_customer:
        raise LimitReached
    now, number, hashed = timezone.now(), new_order_number(), digest(key)
    order = insert(
        Order,
        number=number,
        customer_id=customer_id,
        sale_id=sale.pk,
        quantity=quantity,
        unit_price=sale.price,
        status=Order.Status.PENDING,
        key=hashed,
        created_at=now,
        pay_by=now + timedelta(seconds=settings.PAY_WITHIN_SECONDS),
        closed_at=None,
    )
    unit = [
        Statement(FORGET, []),  # a SELECT that finds no row keeps the last value
        Statement(FIND, [sale.pk]),
        Statement(TAKE, [number, sale.pk], if_unchanged=OutOfStock),
    ]
    first = insert(CustomerQuota, customer_id=customer_id, sale_id=sale.pk, taken=quantity)
    for quota in (first, take_quota(sale=sale, customer_id=customer_id, quantity=quantity)):
        try:
            commit([order, quota, *(unit * quantity)])
        except OutOfStock:
            raise SoldOut from None
        except OperationalError:  # a deadlock or a timeout
            break
        except IntegrityError:  # the key exists, or the customer has bought in this sale
            sent = Order.objects.filter(customer_id=customer_id, sale=sale, key=hashed)
            if earlier := sent.first():
                if earlier.quantity != quantity:
                    raise KeyReused from None
                return earlier.number
        else:
            return number
    raise Overloaded


def breaches(*, sale: Sale, initial: int, acknowledged: int) -> Iterator[str]:
    """Yield the breaches of a sale: units, orders and quotas must agree."""
    orders = list(Order.objects.filter(sale=sale).values_list("quantity", flat=True))
    with connection.cursor() as cursor:
        cursor.execute(COUNTS, [sale.pk])
        units, taken = cursor.fetchone()
        cursor.execute(WRONG, [sale.pk])
        (wrong,) = cursor.fetchone()
    if units != initial or taken != sum(orders):
        yield f"{taken} of {units} units taken, {sum(orders)} promised of {initial}"
    if wrong:
        yield f"{wrong} orders without their units or their quota"
    if len(orders) != acknowledged:
        yield f"{len(orders)} orders, {acknowledged} acknowledged"


def units_middleware(
    get_response: Callable[[HttpRequest], HttpResponse],
) -> Callable[[HttpRequest], HttpResponse]:
    """Serve purchases with a valid token as `PurchaseTokenMiddleware` does, from rows of units."""

    def serve(request: HttpRequest) -> HttpResponse:
        if not (found := BUY.fullmatch(request.path_info)):
            return get_response(request)
        try:
            response = JsonResponse({"number": _buy(request, found[1])}, status=201)
        except ShopError as error:
            response = JsonResponse({"error": error.code}, status=error.status)
        response.headers["Content-Length"] = str(len(response.content))
        return response

    return serve


def _buy(request: HttpRequest, slug: str) -> str:
    form, session = request.POST, request.COOKIES.get(settings.SESSION_COOKIE_NAME, "")
    sale, key, quantity = cached_sale(slug=slug), form["idempotency_key"], int(form["quantity"])
    token = tokens.read(form["purchase_token"], key=key, session=session)
    if token is None or token.sale_id != sale.pk:
        raise SignInFirst
    wanted = PurchaseRequest(token.customer_id, sale, quantity, key, is_first_attempt=True)
    admit(wanted)
    return place_order(customer_id=token.customer_id, sale=sale, quantity=quantity, key=key)
