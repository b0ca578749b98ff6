"""`manage.py consume_orders`: writes the orders of queued sales until it is stopped."""

import signal
import threading
from argparse import ArgumentParser

from django.core.management.base import BaseCommand

from shop.queued.consumer import Consumer


class Command(BaseCommand):
    """A Celery worker starts one by itself; more may run anywhere beside it."""

    help = "Write the orders of queued sales, until SIGTERM or SIGINT."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """--parent."""
        parser.add_argument("--parent", type=int, help="end when this process is gone")

    def handle(self, *, parent: int | None, **options: object) -> None:
        """Finish the batch under way, then end."""
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        Consumer(stop, parent=parent).run()
