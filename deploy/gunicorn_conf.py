"""gunicorn of the full stack. Why each number: docs/reference/deployment.md, "gunicorn"."""

import os
from itertools import count
from types import SimpleNamespace
from typing import Any

import prometheus_client.values
from gunicorn.http import wsgi

values: Any = prometheus_client.values
bind = os.environ.get("BIND", "0.0.0.0:8000")
worker_class = "gthread"
# The number of workers is WEB_CONCURRENCY, which gunicorn reads itself.
threads = int(os.environ.get("WEB_THREADS", "8"))
preload_app = True
max_requests = 100_000
max_requests_jitter = 20_000
# A purchase waits 1 s for its lock and 1 s for a row; MAX_WAITING keeps threads free meanwhile.
timeout = 30
graceful_timeout = 20
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else None  # noqa: S108 - a heartbeat
control_socket_disable = True
# nginx writes the access log.
accesslog = None

# A worker that replaces another takes its place and continues its metrics file. One per process
# would fill the directory, and each scrape reads all of them.
# Only once: HUP reads this module again, and the counts continue.
if "PROMETHEUS_MULTIPROC_DIR" in os.environ and not hasattr(values, "place"):
    values.place, parent = 0, os.getpid()
    values.ValueClass = values.MultiProcessValue(lambda: f"{parent}-{values.place}")


def pre_fork(server: Any, worker: Any) -> None:
    """Assign the lowest free place to a new worker."""
    taken = {other.place for other in server.WORKERS.values()}
    worker.place = next(number for number in count(1) if number not in taken)


def post_fork(server: Any, worker: Any) -> None:
    """Count in the file of the worker's place."""
    values.place = worker.place


def write(response: Any, data: bytes) -> None:
    """Send the headers and the first part of the body in one message.

    gunicorn sends two. Each wakes the client, and meanwhile another thread gets the GIL.
    """
    sock, parts = response.sock, list[bytes]()
    if not response.headers_sent:
        response.sock = SimpleNamespace(sendall=parts.append)
    separately(response, data)
    response.sock = sock
    if parts:
        sock.sendall(b"".join(parts))


separately = wsgi.Response.write
if separately.__module__ == wsgi.__name__:  # HUP reads this module again
    wsgi.Response.write = write
