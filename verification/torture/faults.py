"""Inject the faults of a plan while its processes work; each returns the proof that it fired."""

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from devservers import HOST, ServerError
from devservers.base import START_TIMEOUT, injected_faults
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed, until
from devservers.postgresql import HELLO
from devservers.process import process_state
from loadtest.kernel.history import Recorder
from verification.torture.catalogue import OF_PROCESSES, ON_LINKS
from verification.torture.plan import ALL, EVERY, Fault
from verification.torture.stores import Stores

HELLOS = {"Redis": b"PING\r\n", "MariaDb": b"", "PostgreSql": HELLO, "ZooKeeper": b"srvr"}
"""By server: what a new client sends for a reply."""
PROBE_SHARE = 0.5
"""Share of a fault's time in which a probe must stay without a reply."""
REPLY_TIMEOUT = 5.0
DELAY = 0.03
"""Seconds by which each message of a slow link is delayed."""
COMMIT_TIMEOUT = 2.5
"""Seconds within which a process must send the COMMIT that is to be delayed."""


def _lose(proxy: Proxy) -> None:
    """Cut the connections with the messages that are held."""
    proxy.cut()
    proxy.resume()


def _slow(delay: float) -> Callable[[Proxy], object]:
    return lambda proxy: setattr(proxy, "delay", delay)


LINKS: dict[str, tuple[Callable[[Proxy], object], Callable[[Proxy], object]]] = {
    "partition": (Proxy.hold, _lose),
    "late": (Proxy.hold, Proxy.resume),
    "delay": (_slow(DELAY), _slow(0.0)),
    "cut": (lambda one: one.cut(refuse=True), Proxy.accept),
}
"""By fault: its injection into each link, and its end."""


class Injector:
    """Injects faults into the servers, links and processes of one run."""

    def __init__(self, stores: Stores, recorder: Recorder) -> None:
        self.stores, self.recorder = stores, recorder
        self.proofs: list[tuple[Fault, str]] = []
        """The faults, each with its proof; that is empty if it did not fire."""
        self._targets = defaultdict[str, threading.Lock](threading.Lock)

    def run(self, faults: Sequence[Fault], started: float) -> None:
        """Inject each fault at its time; return when all are over."""
        with ThreadPoolExecutor(max(1, len(faults))) as pool:
            list(pool.map(lambda fault: self._run(fault, started), faults))

    def _run(self, fault: Fault, started: float) -> None:
        time.sleep(max(0.0, started + fault.at - time.monotonic()))
        kind = fault.kind
        group = "process" if kind in OF_PROCESSES else "link" if kind in ON_LINKS else "server"
        lane = f"{group} {fault.target}"
        with self._targets[lane]:  # a killed server cannot be stopped
            method = "interrupt" if kind in LINKS else kind.replace("-", "_")
            inject: Callable[[Fault], str] = getattr(self, f"_{method}")
            killed = {"target": lane} if kind == "kill" else {}
            self.recorder.note("fault", "start", what=kind, lane=lane, **killed)
            proof = ""
            with suppress(FaultFailed, ServerError, OSError):
                proof = inject(fault)
            self.recorder.note("fault", "end", what=kind, lane=lane)
        injected_faults[f"{kind} of a {group}"] += bool(proof)
        self.proofs.append((fault, proof))

    def recover(self) -> None:
        """Wait until all servers and links work again."""
        for server in self.stores.servers:
            server.resume()
            server.start()
            server.wait_ready(START_TIMEOUT)
        for link in self.stores.links:
            for proxy in link:
                proxy.delay = 0.0
                proxy.accept()

    # --- processes ---

    def _kill(self, fault: Fault) -> str:
        worker = self.stores.workers[fault.target]
        if not worker.is_alive:
            return ""
        worker.kill()
        return f"process {worker.pid} ended by SIGKILL"

    def _stop(self, fault: Fault) -> str:
        worker = self.stores.workers[fault.target]
        if not worker.is_alive:
            return ""
        worker.pause()
        time.sleep(fault.seconds)
        worker.resume()
        return f"process {worker.pid} stopped (state T) for {fault.seconds:g} s"

    # --- links ---

    def _proxies(self, fault: Fault) -> list[Proxy]:
        """Return the proxies of one process, or of all that work; to one server, or to all."""
        links = self.stores.links
        links = links[1:] if fault.target == ALL else [links[max(0, fault.target)]]
        servers = slice(None) if fault.server == EVERY else slice(fault.server, fault.server + 1)
        return [proxy for link in links for proxy in link[servers]]

    def _interrupt(self, fault: Fault) -> str:
        """Hold, delay or lose messages; see LINKS."""
        proxies, (inject, end) = self._proxies(fault), LINKS[fault.kind]
        over = time.monotonic() + fault.seconds
        for proxy in proxies:
            inject(proxy)
        try:
            hello = HELLOS[self.stores.store.servers[max(0, fault.server)]]
            proof = _probe(proxies[0].port, hello, fault)
            time.sleep(max(0.0, over - time.monotonic()))
        finally:
            for proxy in proxies:
                end(proxy)
        return proof

    def _late_commit(self, fault: Fault) -> str:
        """Delay the next COMMIT of a process; its outcome is unknown for so long."""
        proxies = self._proxies(fault)
        before = sum(proxy.late_commits for proxy in proxies)
        for proxy in proxies:
            proxy.commit_delay = fault.seconds
        with suppress(FaultFailed):
            until(lambda: not all(one.commit_delay for one in proxies), "a COMMIT", COMMIT_TIMEOUT)
        for proxy in proxies:
            proxy.commit_delay = 0.0
        count = sum(proxy.late_commits for proxy in proxies) - before
        time.sleep(fault.seconds if count else 0.0)
        return f"{count} COMMIT delayed by {fault.seconds:g} s" if count else ""

    # --- servers ---

    def _restart(self, fault: Fault) -> str:
        """Kill a server, and start it on its data."""
        server = self.stores.servers[fault.target]
        before = server.pid
        server.kill()
        is_down = not server.is_running
        time.sleep(fault.seconds)
        server.start()
        return f"server process {before} ended by SIGKILL, now {server.pid}" if is_down else ""

    def _pause(self, fault: Fault) -> str:
        """Stop a server, which keeps its connections."""
        server = self.stores.servers[fault.target]
        server.pause()
        try:
            until(lambda: process_state(server.pid) == "T", "a stopped server")
            time.sleep(fault.seconds)
        finally:
            server.resume()
        return f"server process {server.pid} stopped (state T)"


def _probe(port: int, hello: bytes, fault: Fault) -> str:
    """Return the proof that a new client is refused, waits, or gets no reply."""
    started, reply, least = time.monotonic(), b"", PROBE_SHARE * fault.seconds
    timeout = REPLY_TIMEOUT if fault.kind in ("cut", "delay") else least
    with suppress(OSError), socket.create_connection((HOST, port), timeout) as client:
        client.sendall(hello)
        reply = client.recv(1)
    took = time.monotonic() - started
    if fault.kind == "cut":
        return "" if reply else "a client was refused"
    is_proved = took >= DELAY if fault.kind == "delay" else not reply and took >= least
    return f"a client had no reply for {took:.2f} s" if is_proved else ""
