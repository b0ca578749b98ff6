"""The pages beside a Celery worker; `make stack` asks them of real workers."""

from __future__ import annotations

import threading
from pathlib import Path
from urllib.request import urlopen
from wsgiref.simple_server import make_server

from shop import worker_health


def test_threads_stay_and_with_them_their_connections(tmp_path: Path) -> None:
    served: set[threading.Thread] = set()

    def metrics(environ, start_response):
        served.add(threading.current_thread())
        start_response("200 OK", [])
        return [b"counted\n"]

    pages = worker_health.only_health(metrics, tmp_path)
    options = {"server_class": worker_health._Server, "handler_class": worker_health._Quiet}
    with make_server("127.0.0.1", 0, pages, **options) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        for _ in range(3 * worker_health.THREADS):
            with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=20) as answer:
                assert answer.read() == b"counted\n"
        server.shutdown()
        serving.join()
    assert 1 <= len(served) <= worker_health.THREADS
