"""Inject the faults of a plan while its processes work; each returns the proof that it fired."""

import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from typing import Any, cast

import redis

from devservers import HOST, Redis, ServerFailed
from devservers.base import START_TIMEOUT, injected_faults
from devservers.faults.injectors import ClockJump, CutReplication
from devservers.faults.proxy import Proxy
from devservers.faults.waiting import FaultFailed, until
from devservers.postgresql import HELLO
from devservers.process import process_state
from loadtest.history.recorder import Recorder
from loadtest.torture.plan import ALL, OF_LINKS, OF_PROCESSES, Fault
from loadtest.torture.stores import LinkProxy, Stores

HELLOS = {"Redis": b"PING\r\n", "MariaDb": b"", "PostgreSql": HELLO, "ZooKeeper": b"srvr"}
"""By server: what a new client sends for a reply."""
PROBE_SHARE = 0.5
"""Share of a fault's time in which a probe through the link must stay without a reply."""
CLOCK_JUMP = 3.0
"""Seconds by which a clock jumps: less than the bound of the next grant, more than a lease."""
DELAY = 0.03
"""Seconds by which each message of a slow link is delayed."""


class Injector:
    """Injects faults into the servers, links and processes of one run."""

    def __init__(self, stores: Stores, recorder: Recorder) -> None:
        self.stores, self.recorder = stores, recorder
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
        group = "process" if kind in OF_PROCESSES else "link" if kind in OF_LINKS else "server"
        with self._guard:
            target = self._targets.setdefault((group, fault.target), threading.Lock())
        with target:  # a killed server cannot be stopped, nor a stopped process be stopped
            inject: Callable[[Fault], str] = getattr(self, f"_{kind.replace('-', '_')}")
            lane = f"{group} {fault.target}"
            killed = {"target": lane} if kind == "kill" else {}
            self.recorder.note("fault", "start", what=kind, lane=lane, **killed)
            proof = ""
            with suppress(FaultFailed, ServerFailed, OSError, redis.RedisError):
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
        """Return the proxies of one process, or of all that work."""
        operator, *links = self.stores.links
        found = [operator] if fault.target < ALL else links[fault.target - 1 :][:1]
        return [proxy for link in (links if fault.target == ALL else found) for proxy in link]

    @contextmanager
    def _probe(self, proxy: Proxy, proofs: list[str], seconds: float) -> Iterator[None]:
        """Prove that a new client got no reply for `seconds` while the block runs."""
        asked: list[float] = []
        thread = threading.Thread(target=lambda: asked.append(self._ask(proxy, seconds)))
        thread.start()
        yield
        thread.join()
        if asked[0] >= seconds:
            proofs.append(f"a client had no reply for {asked[0]:.2f} s")

    def _ask(self, proxy: Proxy, seconds: float) -> float:
        """Return the seconds until a new client gets a reply, at most `seconds`."""
        started = time.monotonic()
        with suppress(OSError), socket.create_connection((HOST, proxy.port), seconds) as probe:
            probe.sendall(HELLOS[self.stores.store.server])
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

    def _clock(self, fault: Fault) -> str:
        """Set the server's clock forward, or back."""
        if not self.stores.clocks:
            return ""
        jump = CLOCK_JUMP * (1 if round(100 * fault.seconds) % 2 else -1)
        server, clock = self.stores.servers[fault.target], self.stores.clocks[fault.target]
        injected = ClockJump([clock], [cast(Redis, server)], jump)
        injected.inject()
        time.sleep(fault.seconds)
        injected.recover()
        return f"the server's clock jumped by {jump:g} s" if injected.injected else ""

    def _promote(self, fault: Fault) -> str:
        """Cut a replica off, kill its master, and let the replica take its place and port."""
        master = cast(Redis, self.stores.servers[fault.target])
        replica = self.stores.stack.enter_context(Redis(replica_of=master))
        cut = CutReplication(replica)
        cut.inject()
        time.sleep(fault.seconds)
        master.kill()
        cut.promote()
        replica.send(b"CONFIG SET port %d\r\n" % master.port)
        replica.port, replica.replica_of = master.port, None
        replica.wait_ready()
        self.stores.servers[fault.target] = replica
        self.stores.clocks.clear()  # that of the master drives no other server
        return f"replica without the last writes replaced process {master.pid}"

    def _exhausted(self, fault: Fault) -> str:
        """Let the server refuse new connections, as if others had taken all of them."""
        server = self.stores.servers[fault.target]
        with redis.Redis.from_url(server.url) as direct:
            most = direct.config_get("maxclients")["maxclients"]
            direct.config_set("maxclients", 1)
            reply = server.send(b"PING\r\n")
            time.sleep(fault.seconds)
            direct.config_set("maxclients", most)
        return "a client was refused: max number of clients" if b"max number" in reply else ""

    def _slow_commit(self, fault: Fault) -> str:
        """Let every commit wait for a global read lock."""
        import MySQLdb

        port = self.stores.servers[fault.target].port
        try:
            with closing(MySQLdb.connect(host=HOST, port=port, user="root")) as direct:
                direct.query("FLUSH TABLES WITH READ LOCK")
                time.sleep(fault.seconds)
                direct.query("UNLOCK TABLES")
        except MySQLdb.Error:
            return ""
        return f"all commits waited for {fault.seconds:g} s"

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
