"""Inject the faults of a plan while its processes work; each returns the proof that it fired."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import redis

from devservers import HOST, ServerError
from devservers.base import START_TIMEOUT, injected_faults
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed
from loadtest.history.recorder import Recorder
from loadtest.torture.plan import ALL, EVERY, OF_PROCESSES, ON_LINKS, Fault
from loadtest.torture.server_faults import HELLOS, PROBE_SHARE, ServerFaults
from loadtest.torture.stores import LinkProxy, Stores

DELAY = 0.03
"""Seconds by which each message of a slow link is delayed."""
COMMIT_TIMEOUT = 2.5
"""Seconds within which a process must send the COMMIT that is to be delayed."""


class Injector(ServerFaults):
    """Injects faults into the servers, links and processes of one run."""

    def __init__(self, stores: Stores, recorder: Recorder) -> None:
        super().__init__(stores)
        self.recorder = recorder
        self.proofs: list[tuple[Fault, str]] = []
        """The faults, each with its proof; that is empty if it did not fire."""
        self._targets: dict[tuple[str, int], threading.Lock] = {}
        self._guard = threading.Lock()

    def run(self, faults: Sequence[Fault], started: float) -> None:
        """Inject each fault at its time; return when all are over."""
        with ThreadPoolExecutor(max(1, len(faults))) as pool:
            list(pool.map(lambda fault: self._run(fault, started), faults))

    def _run(self, fault: Fault, started: float) -> None:
        time.sleep(max(0.0, started + fault.at - time.monotonic()))
        kind = fault.kind
        group = "process" if kind in OF_PROCESSES else "link" if kind in ON_LINKS else "server"
        with self._guard:
            target = self._targets.setdefault((group, fault.target), threading.Lock())
        with target:  # a killed server cannot be stopped, nor a stopped process be stopped
            inject: Callable[[Fault], str] = getattr(self, f"_{kind.replace('-', '_')}")
            lane = f"{group} {fault.target}"
            killed = {"target": lane} if kind == "kill" else {}
            self.recorder.note("fault", "start", what=kind, lane=lane, **killed)
            proof = ""
            with suppress(FaultFailed, ServerError, OSError, redis.RedisError):
                proof = inject(fault)
            self.recorder.note("fault", "end", what=kind, lane=lane)
        injected_faults[f"{kind} of a {group}"] += bool(proof)
        self.proofs.append((fault, proof))

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

    def _proxies(self, fault: Fault) -> list[LinkProxy]:
        """Return the proxies of one process, or of all that work; to one server, or to all."""
        operator, *links = self.stores.links
        found = [operator] if fault.target < ALL else links[fault.target - 1 :][:1]
        servers = slice(None) if fault.server == EVERY else slice(fault.server, fault.server + 1)
        links = links if fault.target == ALL else found
        return [proxy for link in links for proxy in link[servers]]

    @contextmanager
    def _probe(self, proxy: LinkProxy, proofs: list[str], seconds: float) -> Iterator[None]:
        """Prove that a new client got no reply for `seconds` while the block runs."""
        asked: list[float] = []
        thread = threading.Thread(target=lambda: asked.append(self._ask(proxy, seconds)))
        thread.start()
        yield
        thread.join()
        if asked[0] >= seconds:
            proofs.append(f"a client had no reply for {asked[0]:.2f} s")

    def _ask(self, proxy: LinkProxy, seconds: float) -> float:
        """Return the seconds until a new client gets a reply, at most `seconds`."""
        started = time.monotonic()
        with suppress(OSError), socket.create_connection((HOST, proxy.port), seconds) as probe:
            server = next(link.index(proxy) for link in self.stores.links if proxy in link)
            kind = type(self.stores.servers[server]).__name__
            probe.sendall(HELLOS.get(kind, HELLOS["ZooKeeper"]))
            probe.settimeout(seconds)
            if probe.recv(1):
                return min(time.monotonic() - started, 0.99 * seconds)
        return time.monotonic() - started

    def _interrupted(self, fault: Fault, end: Callable[[Proxy], object]) -> str:
        proxies, proofs = self._proxies(fault), list[str]()
        for proxy in proxies:
            proxy.hold()
        try:
            with self._probe(proxies[0], proofs, PROBE_SHARE * fault.seconds):
                time.sleep(fault.seconds)
        finally:
            for proxy in proxies:
                end(proxy)
        return "".join(proofs)

    def _partition(self, fault: Fault) -> str:
        """Hold all messages, and lose them with their connections at the end."""

        def end(proxy: Proxy) -> None:
            proxy.cut()
            proxy.resume()

        return self._interrupted(fault, end)

    def _late(self, fault: Fault) -> str:
        """Hold all messages, and deliver them at the end, although their senders gave up."""
        return self._interrupted(fault, Proxy.resume)

    def _delay(self, fault: Fault) -> str:
        """Delay each message."""
        proxies, proofs = self._proxies(fault), list[str]()
        for proxy in proxies:
            proxy.delay = DELAY
        try:
            with self._probe(proxies[0], proofs, DELAY):
                time.sleep(fault.seconds)
        finally:
            for proxy in proxies:
                proxy.delay = 0.0
        return "".join(proofs)

    def _cut(self, fault: Fault) -> str:
        """Reset the connections, and refuse new ones."""
        proxies = self._proxies(fault)
        for proxy in proxies:
            proxy.cut(refuse=True)
        try:
            with socket.create_connection((HOST, proxies[0].port), 5) as probe:
                is_refused = not probe.recv(1)
        except OSError:
            is_refused = True
        time.sleep(fault.seconds)
        for proxy in proxies:
            proxy.accept()
        return "a client was refused" if is_refused else ""

    def _duplicate(self, fault: Fault) -> str:
        """Send each request a second time, on another connection."""
        proxies = self._proxies(fault)
        before = sum(proxy.duplicated for proxy in proxies)
        for proxy in proxies:
            proxy.duplicates = True
        time.sleep(fault.seconds)
        for proxy in proxies:
            proxy.duplicates = False
        count = sum(proxy.duplicated for proxy in proxies) - before
        return f"{count} requests sent twice" if count else ""

    def _late_commit(self, fault: Fault) -> str:
        """Delay the next COMMIT of a process; its outcome is unknown for so long."""
        proxies, end = self._proxies(fault), time.monotonic() + COMMIT_TIMEOUT
        before = sum(proxy.late_commits for proxy in proxies)
        for proxy in proxies:
            proxy.commit_delay = fault.seconds
        while time.monotonic() < end and all(proxy.commit_delay for proxy in proxies):
            time.sleep(0.01)
        for proxy in proxies:
            proxy.commit_delay = 0.0
        count = sum(proxy.late_commits for proxy in proxies) - before
        time.sleep(fault.seconds if count else 0.0)
        return f"{count} COMMIT delayed by {fault.seconds:g} s" if count else ""

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


def counted(proofs: Sequence[tuple[Fault, str]]) -> dict[str, Any]:
    """Return the injected faults by kind."""
    kinds = [fault.kind for fault, proof in proofs if proof]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}
