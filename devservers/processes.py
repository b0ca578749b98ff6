"""A private server process: its port, its folder, its start and its end, whatever happens.

Standard library only: the set-up of a new machine reads `DEBIAN` before anything is installed.
"""

import contextlib
import ctypes
import functools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from .folders import new_folder

HOST = "127.0.0.1"
START_SECONDS = 30.0
STOP_SECONDS = 5.0
# Outside the range the kernel gives to outgoing connections: there, a client that keeps dialling a
# server that is down may be connected to itself, and so keep the port from the restarted server.
PORTS = range(15_000, 32_000)
# redis-server itself would start a service; redis-tools has the same program under another name.
DEBIAN = {
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "my_print_defaults": "mariadb-client-core",
    "mariadb": "mariadb-client-core",
    "mariadb-dump": "mariadb-client",
    "redis-server": "redis-tools",
    "java": "default-jre-headless",
    "cc": "gcc",
    "zookeeper.jar": "libzookeeper-java",
    "nginx": "nginx-light",
    "openssl": "openssl",
    "chromium": "chromium",
}
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


class ServerError(Exception):
    """A private server could not be had."""


class ServerMissing(ServerError):
    """A program is not installed; the message is the command that installs it on Debian."""

    def __init__(self, program: str) -> None:
        install = f"apt-get install -y --no-install-recommends {DEBIAN[program]}"
        super().__init__(f"{program} is not installed: {install}")


class ServerFailed(ServerError):
    """A server ended or stayed silent while starting; the message ends with its log."""


def installed(program: str) -> str | None:
    """The path of a program, or None; Debian keeps servers off the PATH of ordinary users."""
    return shutil.which(program, path=_PATH)


def required(program: str) -> str:
    """The path of a program named in `DEBIAN`, or ServerMissing."""
    if path := installed(program):
        return path
    raise ServerMissing(program)


def tethered(command: Sequence[str], death: signal.Signals = signal.SIGKILL) -> list[str]:
    """The command, arranged to get the signal when the calling process dies; it keeps its pid.

    Linux only: elsewhere it comes back unchanged. The kernel watches the *thread* that starts the
    process, so start it from one that lives as long as it is needed, or through `spawn`.
    """
    if not sys.platform.startswith("linux"):
        return list(command)
    # Not preexec_fn, which runs Python between fork and exec and may deadlock among threads.
    code = (
        "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, int(sys.argv[2]));"
        "os.getppid() == int(sys.argv[1]) or os._exit(1); os.execvp(sys.argv[3], sys.argv[3:])"
    )
    return [sys.executable, "-ISc", code, str(os.getpid()), str(int(death)), *command]


def die_with_parent() -> None:
    """For a child of `multiprocessing`: SIGKILL when its parent ends, and SIGTERM as it was."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


@functools.cache
def _spawner(pid: int) -> ThreadPoolExecutor:
    """The thread that starts servers, one per process: it lives as long as the process does."""
    return ThreadPoolExecutor(1, thread_name_prefix=f"servers-{pid}")


def reserve_port() -> tuple[int, socket.socket]:
    """A free port, and a socket that keeps it from our other processes until it is closed.

    The socket is a UDP one: it marks the number as taken and leaves TCP to the server.
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
    """One server process, its folder and its port.

    The folder is a temporary one, removed by `stop`, unless one is given; the given one is kept.
    `config` is appended to the command line.
    """

    def __init__(self, *, folder: Path | None = None, config: Sequence[str] = ()) -> None:
        self.name = type(self).__name__.lower()
        self.config = tuple(config)
        self._temporary = folder is None
        self.folder = folder or new_folder(self.name)
        self.port, self._mark = reserve_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that serves in the foreground."""

    def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Write what the first start needs into `data`."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server is ready; OSError counts as no."""

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise ServerError(f"{self.name} was never started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def children(self) -> list[int]:
        """The processes that it has started and that live (Linux)."""
        try:
            told = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
        except OSError:
            return []
        return [int(pid) for pid in told.split()]

    def log_tail(self, lines: int = 20) -> str:
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def launch(self) -> None:
        """Start the process without waiting until it is ready."""
        if self.running:
            return
        if not self.data.exists():
            self.data.mkdir(parents=True)
            try:
                self.prepare()
            except BaseException:
                shutil.rmtree(self.data)
                raise
        self._process = self._spawn(self.command())

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Return when the server answers; ServerFailed when it ends or the seconds are over."""
        deadline = time.monotonic() + seconds
        while self.running and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                if self.answers():
                    return
            time.sleep(0.01)
        why = f"gave no answer in {seconds:g} s" if self.running else "ended while starting"
        self.kill()
        raise ServerFailed(f"{self.name} {why}:\n{self.log_tail()}")

    def start(self) -> None:
        """Start it, on the same port and data as before, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def kill(self) -> None:
        """SIGKILL: a crash."""
        self._signal(signal.SIGKILL)
        self._wait()

    def pause(self) -> None:
        """SIGSTOP: alive, connected and silent, until `resume`."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def ask_to_end(self) -> None:
        """SIGTERM, also to a paused one, without waiting."""
        self._signal(signal.SIGTERM)
        self.resume()

    def terminate(self) -> None:
        """End it politely, then by force; `start` brings it back."""
        self.ask_to_end()
        self._wait()

    def restart(self, *, keep_data: bool = True) -> None:
        """Terminate and start on the same port; what it never wrote to disk is lost either way."""
        self.terminate()
        if not keep_data:
            shutil.rmtree(self.data)
        self.start()

    def stop(self) -> None:
        """End it for good: no process, no port and no temporary folder is left."""
        self.terminate()
        self._mark.close()
        if self._temporary:
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
                # A session of its own: Ctrl-C in the terminal is for the one who started us.
                return subprocess.Popen(
                    tethered(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    start_new_session=True,
                )

        return _spawner(os.getpid()).submit(popen).result()

    def _signal(self, how: signal.Signals) -> None:
        # Not os.kill: Popen knows when the number may belong to somebody else by now.
        if self._process is not None:
            self._process.send_signal(how)

    def _wait(self) -> None:
        if self._process is None:
            return
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def ask(self, question: bytes) -> bytes:
        """The first bytes the server says, after the question if there is one."""
        with socket.create_connection((HOST, self.port), timeout=1) as connection:
            connection.sendall(question)
            return connection.recv(4096)


def start_all(servers: Iterable[Server]) -> None:
    """Start them side by side; when one fails, all are stopped for good."""
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
    """Stop them for good, side by side, all of them even when one of them makes trouble."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
            server.ask_to_end()
