"""Who lets orders of a sale expire unpaid cannot hold its units for ever."""

from functools import partial

import pytest

from shop.errors import ShopError, UnpaidLimitReached
from shop.models import CustomerQuota, Order, Sale, User
from shop.orders.service import cancel_order
from tests.shop import purchases
from tests.shop.making import a_customer, a_sale, buy, fresh, signed_in
from tests.shop.queued import ask, assert_sound, consume

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]
pytestmark += [pytest.mark.usefixtures("guard")]
FULFILMENTS = pytest.mark.parametrize("fulfilment", Sale.Fulfilment.values)


def hold(sale: Sale, customer: User, key: str) -> Order:
    """Take a unit of a sale."""
    if sale.is_queued:
        ask(sale, customer, key=key)
        assert consume() == 1
    else:
        purchases.buy(sale, customer=customer, key=key)
    return Order.objects.get(customer=customer, sale=sale, status=Order.Status.PENDING)


def let_expire(sale: Sale, customer: User, key: str) -> None:
    hold(sale, customer, key)
    purchases.expire_the_pending_order()


def refusal(sale: Sale, customer: User, key: str) -> type[ShopError] | None:
    try:
        hold(sale, customer, key)
    except ShopError as error:
        return type(error)
    return None


@FULFILMENTS
@pytest.mark.parametrize(("limit", "expected"), [(2, UnpaidLimitReached), (0, None)])
def test_expired_orders_end_the_purchases_of_a_customer(
    fulfilment, limit, expected, settings
) -> None:
    settings.UNPAID_LIMIT = limit
    sale, customer = a_sale(stock=5, fulfilment=fulfilment), a_customer()
    cancel_order(order=hold(sale, customer, "cancelled"))
    for key in ("first", "second"):
        assert CustomerQuota.objects.get().expired == (limit > 0 and key == "second")
        let_expire(sale, customer, key)
    assert refusal(sale, customer, "third") is expected
    assert refusal(sale, a_customer(), "k") is None
    assert refusal(a_sale(fulfilment=fulfilment), customer, "k") is None
    if sale.is_queued:
        held = 1 + (expected is None)
        assert_sound(sale, held=held, left=5 - held)


def test_without_a_limit_the_count_of_expired_orders_ends(settings) -> None:
    """It left the range of the column, and no order of that customer expired any more."""
    settings.UNPAID_LIMIT = 0
    sale, customer = a_sale(), a_customer()
    hold(sale, customer, "first")
    CustomerQuota.objects.update(expired=32_767)
    purchases.expire_the_pending_order()
    assert refusal(sale, customer, "second") is None


@pytest.mark.parametrize("is_first", [True, False])
def test_order_that_expires_during_the_purchase_counts(is_first, guard, settings) -> None:
    """Only the quota row can know it: the earlier orders are read before the lock."""
    settings.UNPAID_LIMIT = 1
    sale, customer = a_sale(), a_customer()
    hold(sale, customer, "first")
    guard.then("acquire", partial(CustomerQuota.objects.update, expired=1))
    with pytest.raises(UnpaidLimitReached):
        purchases.buy(sale, customer=customer, key="second", is_first=is_first)


def test_refusal_has_its_own_code(settings) -> None:
    settings.UNPAID_LIMIT = 1
    sale, customer = fresh(a_sale()), a_customer()
    let_expire(sale, customer, "first")
    refused = buy(signed_in(customer, headers={"Accept": "application/json"}), sale, key="second")
    assert (refused.status_code, refused.json()["error"]) == (409, "unpaid_limit")


def test_page_of_a_reservation_names_the_unpaid_limit(settings) -> None:
    """The order of another form expired while this one waited. It named the limit of the sale."""
    settings.UNPAID_LIMIT = 1
    sale, customer = fresh(a_sale(fulfilment=Sale.Fulfilment.QUEUED)), a_customer()
    hold(sale, customer, "first")
    waiting = ask(sale, customer, key="second")
    purchases.expire_the_pending_order()
    assert consume() == 1
    page = signed_in(customer).get(waiting.url).text
    assert "Too many of your orders in this sale expired unpaid." in page
