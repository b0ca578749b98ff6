"""Liveness and metrics of the processes that serve no pages: Celery workers and consumers."""

from pathlib import Path

from django.conf import settings
from prometheus_client import start_http_server

from locking.metrics import registry


def beat() -> None:
    """Touch HEARTBEAT_FILE; the container's health check fails while the file is old."""
    if settings.HEARTBEAT_FILE:
        Path(settings.HEARTBEAT_FILE).touch()


def serve_metrics() -> None:
    """Serve Prometheus metrics on METRICS_PORT from a daemon thread; 0 serves nothing."""
    if settings.METRICS_PORT:
        start_http_server(settings.METRICS_PORT, registry=registry())
