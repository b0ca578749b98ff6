"""`manage.py serve_health`: started by a Celery worker for itself, see shop.worker_health."""

from argparse import ArgumentParser
from pathlib import Path

from django.core.management.base import BaseCommand

from shop.worker_health import serve


class Command(BaseCommand):
    """/livez, /readyz and /metrics of the worker that starts this."""

    help = "Serve the health pages of the Celery worker that starts this."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Where, and of whom."""
        parser.add_argument("port", type=int)
        parser.add_argument("--pulse", type=Path, required=True)
        parser.add_argument("--parent", type=int, required=True)

    def handle(self, *, port: int, pulse: Path, parent: int, **options: object) -> None:
        """Until the worker ends."""
        serve(port, pulse, parent)
