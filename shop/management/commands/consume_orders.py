"""`manage.py consume_orders`: write the orders of queued sales until stopped."""

import signal
import threading

from django.core.management.base import BaseCommand

from shop.platform import heartbeat
from shop.reservations.consumer import Consumer


class Command(BaseCommand):
    """Run one consumer; any number of consumers share the work."""

    help = "Write the orders of queued sales, until SIGTERM or SIGINT."

    def handle(self, **options: object) -> None:
        """Consume until a signal arrives, and finish the current batch."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        heartbeat.serve_metrics()
        Consumer(stop).run()
