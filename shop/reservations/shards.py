"""Shards of a queued sale: which Redis keeps the reservations of which customer.

Each URL of QUEUE_URLS is one shard. A customer belongs to one of them, the home shard, which alone
decides about limit and key. How many shards a sale has is fixed by its first load: servers that are
added later serve later sales. With one shard, the keys are those of a shop without QUEUE_URLS.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import count
from typing import NamedTuple
from zlib import crc32

from django.conf import settings

from locking.backends.redis.cluster import SLOTS, slot_of
from shop.errors import ServiceUnavailable
from shop.models import Sale
from shop.platform.redis import Address


class Shard(NamedTuple):
    """One shard of a sale."""

    sale_id: int
    number: int
    """Position in QUEUE_URLS, from 0."""
    total: int
    """Number of shards of the sale."""
    generation: int
    """0 before the first load, negative after staff declared the shard lost."""

    @property
    def tag(self) -> str:
        """Return the hash tag of all its keys."""
        return _tag(self.sale_id, self.number, self.total)

    @property
    def address(self) -> Address:
        """Return where its keys are. Raise ServiceUnavailable if QUEUE_URLS has lost its URL."""
        urls = queue_urls()
        if self.number >= len(urls):
            raise ServiceUnavailable
        return Address(urls[self.number], self.tag)


def queue_urls() -> list[str]:
    """Return the address of each shard."""
    return settings.QUEUE_URLS or [settings.REDIS_URL]


@lru_cache(maxsize=1000)
def _tag(sale_id: int, number: int, total: int) -> str:
    """Return a hash tag in the shard's part of the slots, so that a Cluster spreads the shards."""
    if total == 1:
        return str(sale_id)
    tags = (f"{sale_id}.{number}.{n}" for n in count())
    return next(tag for tag in tags if slot_of(tag) * total // SLOTS == number)


def shards_of(sale: Sale) -> Sequence[Shard]:
    """Return all shards of a sale."""
    generations = sale.generation
    if generations == "0":
        generations = ",".join(["0"] * len(queue_urls()))
    return _shards(sale.pk, generations)


@lru_cache(maxsize=1000)
def _shards(sale_id: int, generations: str) -> tuple[Shard, ...]:
    values = [int(one) for one in generations.split(",")]
    return tuple(Shard(sale_id, number, len(values), one) for number, one in enumerate(values))


def home_number(customer_id: int | None, total: int) -> int:
    """Return the number of the customer's shard; 0 for a malformed entry."""
    if total == 1 or customer_id is None:
        return 0
    return crc32(b"%d" % customer_id) % total


def home_of(sale: Sale, customer_id: int) -> Shard:
    """Return the shard that keeps the customer's reservations."""
    shards = shards_of(sale)
    return shards[home_number(customer_id, len(shards))]


def replaced(sale: Sale, shard: Shard) -> str:
    """Return the value of `Sale.generation` in which this shard has its new generation."""
    values = [str(one.generation) for one in shards_of(sale)]
    values[shard.number] = str(shard.generation)
    return ",".join(values)
