"""`manage.py consume_orders`: write the orders of queued sales until stopped."""

import signal
import threading

from inventory.management.console import HelpfulCommand
from shop.operations import rates
from shop.platform import metrics
from shop.reservations.consumer import Consumer


class Command(HelpfulCommand):
    """Run one consumer; any number of consumers share the work."""

    help = "Write the orders of queued sales until SIGTERM or SIGINT."

    def handle(self, **options: object) -> None:
        """Consume until a signal arrives, and finish the current batch."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        metrics.serve_metrics()
        rates.start("consumer")
        Consumer(stop).run()
