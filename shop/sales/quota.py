"""Statements that change customer quotas; they enforce the limit per customer without any lock."""

from inventory.statements import Statement
from shop.errors import LimitReached
from shop.models import Sale


def take_quota(*, sale: Sale, customer_id: int, quantity: int) -> Statement:
    """Return the UPDATE that adds to a customer's quota; the commit raises LimitReached."""
    return Statement(
        "UPDATE shop_customerquota SET taken = taken + %s"
        " WHERE customer_id = %s AND sale_id = %s AND taken <= %s",
        [quantity, customer_id, sale.pk, sale.limit_per_customer - quantity],
        if_unchanged=LimitReached,
    )


def return_quota(*, sale_id: int, customer_id: int, quantity: int) -> Statement:
    """Return the UPDATE that subtracts the units of a closed order."""
    return Statement(
        "UPDATE shop_customerquota SET taken = taken - %s WHERE customer_id = %s AND sale_id = %s",
        [quantity, customer_id, sale_id],
    )
