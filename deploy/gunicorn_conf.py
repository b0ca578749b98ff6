"""gunicorn of the full stack. Why each number: docs/operations.md, "gunicorn"."""

import os
from typing import Any

from prometheus_client.multiprocess import mark_process_dead

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


def child_exit(server: Any, worker: Any) -> None:
    """What a worker counted stays; what it was, such as a live gauge, goes."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]
