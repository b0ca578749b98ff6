"""Inject the faults of a plan while its processes work; each returns the proof that it fired."""

import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import cast

import redis

from devservers import HOST, PostgreSql, Redis, ServerError
from devservers.base import START_TIMEOUT, injected_faults
from devservers.faults.injectors import ClockJump, CutReplication
from devservers.faults.proxy import Proxy
from devservers.faults.standby import Standby
from devservers.faults.waiting import FaultFailed, until
from devservers.postgresql import HELLO
from devservers.process import process_state
from loadtest.kernel.history import Recorder
from verification.torture.catalogue import OF_PROCESSES, ON_LINKS
from verification.torture.plan import ALL, EVERY, Fault
from verification.torture.stores import CONNECTIONS, Stores

HELLOS = {"Redis": b"PING\r\n", "MariaDb": b"", "PostgreSql": HELLO, "ZooKeeper": b"srvr"}
"""By server: what a new client sends for a reply."""
PROBE_SHARE = 0.5
"""Share of a fault's time in which a probe must stay without a reply."""
CLOCK_JUMP = 3.0
"""Seconds by which a clock jumps: less than the bound of the next grant, more than a lease."""
RELOAD = "SELECT pg_reload_conf()"
WRITTEN_COMMIT = "SELECT txid_current(), pg_logical_emit_message(true, 'torture', 'commit')"
_IN_TABLE = (
    "CREATE TABLE IF NOT EXISTS torture_disk (line TEXT)",
    "INSERT INTO torture_disk " + " UNION ALL ".join(["SELECT REPEAT('x', 1000)"] * 1000),
    "DROP TABLE torture_disk",
)
GROWTH = {
    "Redis": ("CONFIG SET appendonly yes", "SET torture-disk x", "CONFIG SET appendonly no"),
    "MariaDb": _IN_TABLE,
    "PostgreSql": _IN_TABLE,
}
"""By server: the statements before a file can grow, of its growth, and afterwards."""
REPLY_TIMEOUT = 5.0
DELAY = 0.03
"""Seconds by which each message of a slow link is delayed."""
COMMIT_TIMEOUT = 2.5
"""Seconds within which a process must send the COMMIT that is to be delayed."""


def _lose(proxy: Proxy) -> None:
    """Cut the connections with the messages that are held."""
    proxy.cut()
    proxy.resume()


LINKS: dict[str, tuple[Callable[[Proxy], object], Callable[[Proxy], object]]] = {
    "partition": (Proxy.hold, _lose),
    "late": (Proxy.hold, Proxy.resume),
    "delay": (lambda one: setattr(one, "delay", DELAY), lambda one: setattr(one, "delay", 0.0)),
    "cut": (lambda one: one.cut(refuse=True), Proxy.accept),
    "duplicate": (
        lambda one: setattr(one, "duplicates", True),
        lambda one: setattr(one, "duplicates", False),
    ),
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
        with self._targets[
            lane
        ]:  # a killed server cannot be stopped, nor a stopped process be stopped
            method = "interrupt" if kind in LINKS else kind.replace("-", "_")
            inject: Callable[[Fault], str] = getattr(self, f"_{method}")
            killed = {"target": lane} if kind == "kill" else {}
            self.recorder.note("fault", "start", what=kind, lane=lane, **killed)
            proof = ""
            with suppress(FaultFailed, ServerError, OSError, redis.RedisError):
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
        if worker.is_alive:
            worker.kill()
            return f"process {worker.pid} ended by SIGKILL"
        return ""

    def _stop(self, fault: Fault) -> str:
        worker = self.stores.workers[fault.target]
        if worker.is_alive:
            worker.pause()
            time.sleep(fault.seconds)
            worker.resume()
            return f"process {worker.pid} stopped (state T) for {fault.seconds:g} s"
        return ""

    # --- links ---

    def _proxies(self, fault: Fault) -> list[Proxy]:
        """Return the proxies of one process, or of all that work; to one server, or to all."""
        links = self.stores.links
        links = links[1:] if fault.target == ALL else [links[max(0, fault.target)]]
        servers = slice(None) if fault.server == EVERY else slice(fault.server, fault.server + 1)
        return [proxy for link in links for proxy in link[servers]]

    def _interrupt(self, fault: Fault) -> str:
        """Hold, delay, lose or repeat messages; see LINKS."""
        proxies, (inject, end) = self._proxies(fault), LINKS[fault.kind]
        over, before = time.monotonic() + fault.seconds, sum(one.duplicated for one in proxies)
        hello = HELLOS[self.stores.store.servers[max(0, fault.server)]]
        for proxy in proxies:
            inject(proxy)
        try:
            proof = "" if fault.kind == "duplicate" else _probe(proxies[0].port, hello, fault)
            time.sleep(max(0.0, over - time.monotonic()))
        finally:
            for proxy in proxies:
                end(proxy)
        if fault.kind == "duplicate" and (count := sum(one.duplicated for one in proxies) - before):
            return f"{count} requests sent twice"
        return proof

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
        if fault.target not in self.stores.clocks:
            return ""
        jump = CLOCK_JUMP * (1 if round(100 * fault.seconds) % 2 else -1)
        server = cast(Redis, self.stores.servers[fault.target])
        injected = ClockJump([self.stores.clocks[fault.target]], [server], jump)
        injected.inject()
        time.sleep(fault.seconds)
        injected.recover()
        return f"the server's clock jumped by {jump:g} s" if injected.injected else ""

    def _promote(self, fault: Fault) -> str:
        """Cut a replica off, kill its master, and let the replica take its place."""
        number, stack = fault.target, self.stores.stack
        master = self.stores.servers[number]
        stack.callback(master.stop)
        if isinstance(master, PostgreSql):
            replica: Standby | Redis = Standby(master)
        else:
            replica = Redis(replica_of=cast(Redis, master), config=master.config)
        self.stores.control(number, replica)
        stack.enter_context(replica)
        if isinstance(replica, Standby):
            replica.wait_for_replay()
            replica.cut()
            time.sleep(fault.seconds)
            master.kill()
            replica.promote()
            for link in self.stores.links:
                link[number].redirect(replica.port)
        else:
            cut = CutReplication(replica)
            cut.inject()
            time.sleep(fault.seconds)
            cut.replace(cast(Redis, master))
        self.stores.servers[number] = replica
        return f"replica without the last writes replaced process {master.pid}"

    def _exhausted(self, fault: Fault) -> str:
        """Take all connections, so that the server refuses new ones."""
        server, is_refused = self.stores.servers[fault.target], False
        with ExitStack() as stack:
            for _ in range(CONNECTIONS + 5):
                client = stack.enter_context(socket.create_connection((HOST, server.port), 2))
                client.sendall(HELLOS[self.stores.store.server])
                reply = client.recv(4096)  # too many: of Redis, PostgreSQL and MariaDB
                is_refused = b"max number" in reply or reply[:1] == b"E" or reply[4:5] == b"\xff"
                if is_refused:
                    break
            time.sleep(fault.seconds)
        return f"a client was refused: {reply!r:.80}" if is_refused else ""

    def _slow_commit(self, fault: Fault) -> str:
        """Let every commit wait: for a global read lock, or for a standby that does not exist."""
        server, took = self.stores.servers[fault.target], list[float]()
        if not isinstance(server, PostgreSql):
            server.execute("FLUSH TABLES WITH READ LOCK", f"DO SLEEP({fault.seconds})")
            return f"all commits waited for {fault.seconds:g} s"

        def commit() -> None:
            started = time.monotonic()
            server.execute(WRITTEN_COMMIT)
            took.append(time.monotonic() - started)

        probe, change = threading.Thread(target=commit), "ALTER SYSTEM {} synchronous_standby_names"
        try:
            server.execute(change.format("SET") + " = 'nowhere'", RELOAD)
            probe.start()
            time.sleep(fault.seconds)
        finally:
            server.execute(change.format("RESET"), RELOAD)
        probe.join()
        slow = took and took[0] >= PROBE_SHARE * fault.seconds
        return f"a commit took {took[0]:.2f} s" if slow else ""

    def _full_disk(self, fault: Fault) -> str:
        """Leave a server no space for larger files."""
        if fault.target not in self.stores.disks:
            return ""
        server, disk = self.stores.servers[fault.target], self.stores.disks[fault.target]
        prepare, grow, remove = GROWTH[self.stores.store.servers[fault.target]]
        server.execute(prepare)
        if isinstance(server, Redis):
            until(
                lambda: b"aof_rewrite_in_progress:0" in server.send(b"INFO persistence\r\n"),
                "the file",
            )
        end, refusal = time.monotonic() + fault.seconds, ""
        disk.fill()
        try:
            while time.monotonic() < end:
                server.execute(grow)
                time.sleep(0.02)
        except ServerError as error:
            refusal = str(error)
            time.sleep(max(0.0, end - time.monotonic()))
        finally:
            disk.free()
            with suppress(ServerError):
                server.execute(remove)
        return f"a write was refused: {refusal:.80}" if refusal else ""


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
