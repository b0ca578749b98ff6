"""/livez, /readyz and /metrics of a Celery worker, from a process beside it, as web serves them.

Not a thread: the pool's processes are forked from the worker's. The worker's own loop touches a
file once a second; while the file is old, /livez says that the worker hangs.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from celery import bootsteps

PULSE = 1.0
STILL = 15.0
"""Seconds without a pulse after which the worker counts as hanging."""
THREADS = 4
PATHS = ("/livez", "/readyz", "/metrics")


class Health(bootsteps.StartStopStep):  # type: ignore[misc]
    """Serves on WORKER_PORT; 0, the default, for nobody."""

    requires = {"celery.worker.components:Timer"}

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self.process: subprocess.Popen[bytes] | None = None
        self.entry: Any = None
        self.pulse = Path()

    def start(self, parent: Any) -> None:
        """With the worker."""
        from django.conf import settings  # not known yet when Celery is imported

        if not settings.WORKER_PORT:
            return
        handle, name = tempfile.mkstemp(prefix="worker-pulse-")
        os.close(handle)
        self.pulse = Path(name)
        command = [sys.executable, "-m", "django", "serve_health", str(settings.WORKER_PORT)]
        command += ["--pulse", name, "--parent", str(os.getpid())]
        self.process = subprocess.Popen(command, cwd=settings.BASE_DIR, stdin=subprocess.DEVNULL)
        self.entry = parent.timer.call_repeatedly(PULSE, self.pulse.touch)

    def stop(self, parent: Any) -> None:
        """With the worker, also when it is told to end at once."""
        if self.process is not None:
            self.entry.cancel()
            self.process.kill()
            self.process.wait()
            self.process = None
            self.pulse.unlink(missing_ok=True)

    terminate = stop


class _Server(ThreadingMixIn, WSGIServer):
    """With threads that stay: a thread has its own connections to the cache, and who ends with
    each request leaves them to the garbage collector."""

    def __init__(self, *address: Any) -> None:
        super().__init__(*address)
        self._pool = ThreadPoolExecutor(THREADS)

    def process_request(self, request: Any, client_address: Any) -> None:
        """When a thread is free."""
        self._pool.submit(self.process_request_thread, request, client_address)

    def server_close(self) -> None:
        """And end the threads, which nobody keeps waiting for more than some seconds."""
        super().server_close()
        self._pool.shutdown()


class _Quiet(WSGIRequestHandler):
    timeout = 5.0  # seconds for who connects and says nothing

    def log_message(self, *arguments: Any) -> None:
        """A line for every probe is no news."""


def only_health(application: Callable[..., Iterable[bytes]], pulse: Path) -> Callable[..., Any]:
    """The shop, but for its health pages closed; /livez is 503 while the worker hangs."""

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in PATHS:
            status, why = "404 Not Found", b"only /livez, /readyz and /metrics\n"
        elif path == "/livez" and time.time() - pulse.stat().st_mtime > STILL:
            status, why = "503 Service Unavailable", b"the worker hangs\n"
        else:
            return application(environ, start_response)
        start_response(status, [("Content-Type", "text/plain")])
        return [why]

    return serve


def serve(port: int, pulse: Path, parent: int) -> None:
    """Until `parent` is no longer the process that started this one."""
    from shop.wsgi import application

    served = only_health(application, pulse)
    with make_server("", port, served, server_class=_Server, handler_class=_Quiet) as server:
        server.timeout = PULSE
        while os.getppid() == parent:
            server.handle_request()
