"""A private server process: its port, its directory, its start and its end."""

import contextlib
import functools
import os
import queue
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Self

from .faults.waiting import until
from .process import is_stopped, with_parent_death_signal
from .programs import ServerError, ServerMissing
from .temporary import temporary_directory

HOST = "127.0.0.1"
START_TIMEOUT = 90.0
STOP_TIMEOUT = 5.0
# Outside the range the kernel gives to outgoing connections: there, a client that keeps connecting
# to a stopped server may get connected to itself, and so block the port of the restarted server.
PORTS = range(15_000, 32_000)

injected_faults: Counter[str] = Counter()
"""The faults that this process has injected: each injector, such as `Server.kill`, adds its own."""


class ServerFailed(ServerError):
    """A server ended or did not respond while starting; the message ends with its log."""


Spawn = Callable[[], subprocess.Popen[bytes]]


@functools.cache
def _spawner(pid: int) -> "queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Spawn]]":
    """Return the requests to the thread that starts servers: it lives as long as its process.

    An executor's thread would be joined at the end, for ever if a signal interrupts its start.
    """
    requests = queue.SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Spawn]]()

    def serve() -> None:
        while True:
            made, spawn = requests.get()
            try:
                made.set_result(spawn())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that asked
                made.set_exception(error)

    threading.Thread(target=serve, name=f"servers-{pid}", daemon=True).start()
    return requests


def reserve_port() -> tuple[int, socket.socket]:
    """Return a free port, and a socket that keeps our other processes from taking it until closed.

    It is a UDP socket: it marks the number as taken and leaves TCP to the server.
    """
    while True:
        port = random.choice(PORTS)
        mark = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((HOST, port))
            mark.bind((HOST, port))
            return port, mark
        mark.close()


class Server(ABC):
    """One server process, its directory and its port.

    Without `folder`, the directory is a temporary one that `stop` removes; a given one is kept.
    `config` is appended to the command line.
    """

    def __init__(self, *, folder: Path | None = None, config: Sequence[str] = ()) -> None:
        self.name = type(self).__name__.lower()
        self.config = tuple(config)
        self._is_temporary = folder is None
        self.folder = folder or temporary_directory(self.name)
        self._marks = list[socket.socket]()
        self.port = self.reserve()
        self._process: subprocess.Popen[bytes] | None = None
        self._preloaded: dict[str, str] = {}

    def reserve(self) -> int:
        """Return one more port, which is kept from our other processes until `stop`."""
        port, mark = reserve_port()
        self._marks.append(mark)
        return port

    def preload(self, env: Mapping[str, str]) -> None:
        """Start from now on with `env`, which names a library in LD_PRELOAD beside earlier ones."""
        libraries = [one["LD_PRELOAD"] for one in (self._preloaded, env) if one]
        self._preloaded |= {**env, "LD_PRELOAD": ":".join(libraries)} if env else {}

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the address for clients."""

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line that serves in the foreground."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Write what the first start needs into `data`."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Return True once the server responds; OSError counts as False."""

    @property
    def data(self) -> Path:
        """Return the directory for its data."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """Return the file that gets its output."""
        return self.folder / "log"

    @property
    def pid(self) -> int:
        """Return the process id; raise ServerError before the first start."""
        if self._process is None:
            raise ServerError(f"{self.name} was never started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Return True while the process lives."""
        return self._process is not None and self._process.poll() is None

    def children(self) -> list[int]:
        """Return the ids of its living child processes (Linux)."""
        try:
            pids = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in pids.split()]

    def log_tail(self) -> str:
        """Return the last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        if self.is_running:
            return
        if not self.data.exists():
            self.data.mkdir(parents=True)
            try:
                self.prepare()
            except BaseException:
                shutil.rmtree(self.data)
                raise
        env = [f"{name}={value}" for name, value in self._preloaded.items()]
        self._process = self._spawn([*(["env", *env] if env else []), *self.command()])

    def run_program(self, command: Sequence[str], text: str = "") -> None:
        """Run a program with this input; raise ServerFailed if it fails or does not end in time."""
        with self.log.open("ab") as log:
            try:
                subprocess.run(
                    command,
                    input=text.encode(),
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    timeout=START_TIMEOUT,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                raise ServerFailed(f"{error}\n{self.log_tail()}") from None

    def wait_ready(self, seconds: float = START_TIMEOUT) -> None:
        """Wait until the server is ready; raise ServerFailed if it ends or time is up."""
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.is_ready():
                    return
            time.sleep(0.01)
        why = f"did not respond in {seconds:g} s" if self.is_running else "ended while starting"
        self._signal(signal.SIGKILL)
        self._wait()
        raise ServerFailed(f"{self.name} {why}:\n{self.log_tail()}")

    def start(self) -> None:
        """Start on the same port and data as before, and wait until the server is ready."""
        try:
            self.launch()
        except ServerMissing:
            self.stop()  # for good
            raise
        self.wait_ready()

    def kill(self) -> None:
        """Inject a crash: SIGKILL."""
        self._inject(signal.SIGKILL, "killed")
        self._wait()

    def pause(self) -> None:
        """Inject a stall: SIGSTOP leaves the server connected but unresponsive until `resume`."""
        self._inject(signal.SIGSTOP, "stopped")
        until(lambda: not self.is_running or all(map(is_stopped, self.working())), "the stop")

    def working(self) -> list[int]:
        """Return the processes that reply to clients."""
        return [self.pid]

    def resume(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def request_stop(self) -> None:
        """Send SIGTERM, also to a paused server, without waiting."""
        self._signal(signal.SIGTERM)
        self.resume()

    def terminate(self) -> None:
        """Send SIGTERM, then SIGKILL after STOP_TIMEOUT; `start` brings the server back."""
        self.request_stop()
        self._wait()

    def stop(self) -> None:
        """End the process, free the port and remove a temporary directory."""
        try:
            self.terminate()
        finally:
            for mark in self._marks:
                mark.close()
            if self._is_temporary:
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def _spawn(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        def popen() -> subprocess.Popen[bytes]:
            with self.log.open("ab") as log:
                # A session of its own: Ctrl-C in the terminal is for the starting process only.
                return subprocess.Popen(
                    with_parent_death_signal(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )

        made = Future[subprocess.Popen[bytes]]()
        _spawner(os.getpid()).put((made, popen))
        try:
            return made.result()
        except BaseException:  # a signal: only this method knows the process, and its children
            os.killpg(made.result().pid, signal.SIGKILL)
            made.result().wait()
            raise

    def _inject(self, number: signal.Signals, description: str) -> None:
        if self.is_running:
            injected_faults[f"{type(self).__name__} {description}"] += 1
        self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        # Not os.kill: Popen knows when the process id may belong to another process by now.
        if self._process is not None:
            self._process.send_signal(number)

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_TIMEOUT)
        finally:  # also after a signal
            self._process.kill()
            self._process.wait()

    def send(self, request: bytes, *, port: int | None = None) -> bytes:
        """Return the first bytes that the server sends on a new connection after `request`.

        `port` is another one of its ports.
        """
        with socket.create_connection((HOST, port or self.port), timeout=1) as connection:
            connection.sendall(request)
            return connection.recv(4096)

    def execute(self, *statements: str) -> None:
        """Execute statements on a connection of its own. Raise ServerError with its error."""
        raise ServerError(f"{type(self).__name__} executes no statements: {statements!r:.60}")


class Group:
    """Servers that start and stop together."""

    servers: Sequence[Server]

    def start(self) -> None:
        """Start all; if one fails, stop all of them for good."""
        start_all(self.servers)

    def stop(self) -> None:
        """Stop all for good."""
        stop_all(self.servers)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()


def start_all(servers: Iterable[Server]) -> None:
    """Start servers in parallel; if one fails, stop all of them for good."""
    servers = list(servers)
    try:
        for server in servers:
            server.launch()
        for server in servers:
            server.wait_ready()
    except BaseException:
        stop_all(servers)
        raise


def stop_all(servers: Iterable[Server]) -> None:
    """Stop all servers for good and in parallel, even if stopping one of them fails."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.request_stop()
