"""Which rows of a sale's stock a purchase takes its pieces from, and a return gives them back to.

A stock in segments is several rows, each with a lock of its own. A buyer tries the row of the
process that serves him first, where he shares grants with its other buyers (ADR 9), and takes from
several in one transaction when none has enough but together they have.
"""

import os
import socket
import zlib
from collections.abc import Sequence
from typing import NamedTuple

from inventory.models import Stock
from inventory.selectors import rows_of, taken_by
from shop.models import Order, Sale

HOST = zlib.crc32(socket.gethostname().encode())


class Part(NamedTuple):
    """Pieces of one row."""

    stock_id: int
    quantity: int


def own_row() -> int:
    """Counts through the rows: neighbours on a host, as a web server's workers, differ in it."""
    return HOST + os.getpid()


def choose(rows: Sequence[Stock], *, quantity: int) -> list[Part]:
    """Where to take pieces, lowest id first; nowhere when all the rows together have too few."""
    own = own_row() % len(rows)
    in_turn = (*rows[own:], *rows[:own])
    for row in in_turn:
        if row.quantity >= quantity:
            return [Part(row.pk, quantity)]
    parts = []
    for row in sorted(in_turn, key=lambda row: row.quantity, reverse=True):
        if taken := min(quantity, row.quantity):
            parts.append(Part(row.pk, taken))
            quantity -= taken
    return [] if quantity else sorted(parts)


def choose_again(sale: Sale, *, quantity: int) -> list[Part]:
    """The same by the rows as they are now; nowhere if the sale has but one, which refused."""
    if sale.segments == 1:
        return []
    return choose(rows_of(stock_id=sale.stock_id), quantity=quantity)


def parts_of(order: Order) -> list[Part]:
    """Where an order's pieces came from."""
    if order.sale.segments == 1:
        return [Part(order.sale.stock_id, order.quantity)]
    return [Part(*taken) for taken in taken_by(order_number=order.number)]
