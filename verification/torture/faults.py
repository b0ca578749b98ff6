"""Inject the faults of a plan while its processes work; each returns the proof that it fired."""

import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from devservers import Server, ServerError
from devservers.base import START_TIMEOUT, injected_faults
from devservers.faults.injectors import Disturb
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed, until
from loadtest.kernel.history import Recorder
from verification.torture.catalogue import OF_PROCESSES, ON_LINKS
from verification.torture.plan import ALL, EVERY, Fault
from verification.torture.stores import Stores

HOW = {"partition": "silent", "restart": "kill", "pause": "stop"}
"""The names that `devservers.faults.injectors` has for some of these faults."""
CONNECT_SECONDS = 1.0
"""Seconds within which a process must use the link that is to be disturbed."""
COMMIT_TIMEOUT = 2.5
"""Seconds within which a process must send the COMMIT that is to be delayed."""


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
            killed = {"target": lane} if kind == "kill" else {}
            self.recorder.note("fault", "start", what=kind, lane=lane, **killed)
            proof = ""
            with suppress(FaultFailed, ServerError, OSError):
                proof = getattr(self, f"_hit_{group}")(fault)
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

    def _hit_process(self, fault: Fault) -> str:
        worker = self.stores.workers[fault.target]
        if not worker.is_alive:
            return ""
        if fault.kind == "kill":
            worker.kill()
            return f"process {worker.pid} ended by SIGKILL"
        worker.pause()
        time.sleep(fault.seconds)
        worker.resume()
        return f"process {worker.pid} stopped (state T) for {fault.seconds:g} s"

    def _hit_server(self, fault: Fault) -> str:
        return _disturb([self.stores.servers[fault.target]], fault)

    def _hit_link(self, fault: Fault) -> str:
        """Disturb the links of one process, or of all that work, to one server or to all."""
        links = self.stores.links
        links = links[1:] if fault.target == ALL else [links[max(0, fault.target)]]
        servers = slice(None) if fault.server == EVERY else slice(fault.server, fault.server + 1)
        proxies = [proxy for link in links for proxy in link[servers]]
        if fault.kind == "late-commit":
            return _delay_commit(proxies, fault.seconds)
        until(lambda: any(one.connections for one in proxies), "a connection", CONNECT_SECONDS)
        return _disturb(proxies, fault)


def _disturb(targets: Sequence[Server | Proxy], fault: Fault) -> str:
    return Disturb(targets, HOW.get(fault.kind, fault.kind)).last(fault.seconds)


def _delay_commit(proxies: Sequence[Proxy], seconds: float) -> str:
    """Delay the next COMMIT of a process; its outcome is unknown for so long."""
    before = sum(proxy.late_commits for proxy in proxies)
    for proxy in proxies:
        proxy.commit_delay = seconds
    with suppress(FaultFailed):
        until(lambda: not all(one.commit_delay for one in proxies), "a COMMIT", COMMIT_TIMEOUT)
    for proxy in proxies:
        proxy.commit_delay = 0.0
    count = sum(proxy.late_commits for proxy in proxies) - before
    time.sleep(seconds if count else 0.0)
    return f"{count} COMMIT delayed by {seconds:g} s" if count else ""
