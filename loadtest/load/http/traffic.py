"""Test traffic for the operations page: half a minute of purchases in a sale of its own.

They come over HTTP, as from browsers, and each of the buyers gets a unit.
"""

import time
from datetime import timedelta
from urllib.parse import urlsplit

from loadtest.load.http.buyers import Buyer, clear_away, requests, sign_in
from loadtest.load.http.client import paced, send_requests
from loadtest.load.sale import open_sale

SECONDS = 30
PER_SECOND, AT_ONCE = 20, 5
"""Purchases, and how many of them are sent together: they wait for each other's lock."""
BUYERS = SECONDS * PER_SECOND
LONGEST = 120
"""Seconds until the sale closes in any case."""


def send_traffic(url: str) -> None:
    """Send it to the shop at `url`."""
    address = urlsplit(url)
    name, length = f"lab-traffic-{time.time_ns():x}", timedelta(seconds=LONGEST)
    sale = open_sale(name, BUYERS, product=name, open_for=length, is_listed=False)
    buyers: list[Buyer] = []
    try:
        buyers = sign_in(BUYERS, name)  # accounts of its own, not those of customers
        forms = requests(buyers, f"{sale.get_absolute_url()}buy/", sale)
        sent = paced(forms, PER_SECOND, at_once=AT_ONCE)
        port, host = address.port or 80, address.hostname or ""
        send_requests(port, sent, connections=AT_ONCE, seconds=LONGEST, host=host)
    finally:
        clear_away(sale, buyers)
