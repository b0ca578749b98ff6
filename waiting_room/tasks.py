"""The scheduled work of waiting rooms."""

from contextlib import suppress

from celery import shared_task

from locking.jobs.run_once import run_once
from shop.errors import ShopError
from shop.purchase.admission import cached_sale
from waiting_room import service


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def admit() -> None:
    """Move admission forward where no page does."""
    service.admit()


@shared_task(time_limit=60, soft_time_limit=50)
@run_once
def fill(slug: str, waiting: int) -> None:
    """Let simulated customers join a demo's room until so many wait: a visitor really waits."""
    with suppress(ShopError):  # the room was removed, or the sale has ended
        sale = cached_sale(slug=slug)
        now = service.status_of(sale=sale)
        for number in range(waiting - now.waiting):
            service.join(sale=sale, customer_id=-1 - now.joined - number)
