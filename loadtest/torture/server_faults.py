"""Faults of the servers of a torture run; each returns the proof that it fired, or nothing."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from typing import Any, cast

import redis

from devservers import HOST, PostgreSql, Redis, Server
from devservers.faults.injectors import ClockJump, CutReplication
from devservers.faults.standby import Standby
from devservers.faults.waiting import FaultFailed, until
from devservers.postgresql import HELLO, USER
from devservers.process import process_state
from loadtest.torture.plan import Fault
from loadtest.torture.stores import CONNECTIONS, Stores

HELLOS = {"Redis": b"PING\r\n", "MariaDb": b"", "PostgreSql": HELLO, "ZooKeeper": b"srvr"}
"""By server: what a new client sends for a reply."""
PROBE_SHARE = 0.5
"""Share of a fault's time in which a probe must stay without a reply."""
CLOCK_JUMP = 3.0
"""Seconds by which a clock jumps: less than the bound of the next grant, more than a lease."""
SYNCHRONOUS = "synchronous_standby_names"
"""PostgreSQL's setting of the standbys that a commit waits for."""
WRITTEN_COMMIT = "SELECT txid_current(), pg_logical_emit_message(true, 'torture', 'commit')"
MUCH = "REPEAT('x', 1000)"
"""Text of which a thousand rows fill more pages than a table has."""


class ServerFaults:
    """The faults of servers, by kind."""

    def __init__(self, stores: Stores) -> None:
        self.stores = stores

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
        server, clock = self.stores.servers[fault.target], self.stores.clocks[fault.target]
        injected = ClockJump([clock], [cast(Redis, server)], jump)
        injected.inject()
        time.sleep(fault.seconds)
        injected.recover()
        return f"the server's clock jumped by {jump:g} s" if injected.injected else ""

    def _promote(self, fault: Fault) -> str:
        """Cut a replica off, kill its master, and let the replica take its place."""
        master = self.stores.servers[fault.target]
        self.stores.stack.callback(master.stop)
        if isinstance(master, PostgreSql):
            return self._promote_standby(master, fault)
        master = cast(Redis, master)
        replica = Redis(replica_of=master, config=master.config)
        self.stores.control(fault.target, replica)
        self.stores.stack.enter_context(replica)
        cut = CutReplication(replica)
        cut.inject()
        time.sleep(fault.seconds)
        master.kill()
        cut.promote()
        replica.send(b"CONFIG SET port %d\r\n" % master.port)
        replica.port, replica.replica_of = master.port, None
        replica.wait_ready()
        self.stores.servers[fault.target] = replica
        return f"replica without the last writes replaced process {master.pid}"

    def _promote_standby(self, master: PostgreSql, fault: Fault) -> str:
        standby = Standby(master)
        self.stores.control(fault.target, standby)
        self.stores.stack.enter_context(standby)
        standby.wait_for_replay()
        standby.cut()
        time.sleep(fault.seconds)
        master.kill()
        standby.promote()
        for link in self.stores.links:
            link[fault.target].redirect(standby.port)
        self.stores.servers[fault.target] = standby
        return f"standby without the last writes replaced process {master.pid}"

    def _exhausted(self, fault: Fault) -> str:
        """Take all connections, so that the server refuses new ones."""
        server, refusal = self.stores.servers[fault.target], b""
        with ExitStack() as stack:
            for _ in range(CONNECTIONS + 5):
                client = stack.enter_context(socket.create_connection((HOST, server.port), 2))
                client.sendall(HELLOS[self.stores.store.server])
                refusal = client.recv(4096)
                if is_refusal(refusal):
                    break
            time.sleep(fault.seconds)
        return f"a client was refused: {refusal!r:.80}" if is_refusal(refusal) else ""

    def _slow_commit(self, fault: Fault) -> str:
        """Let every commit wait: for a global read lock, or for a standby that does not exist."""
        server, took = self.stores.servers[fault.target], list[float]()
        with _direct(server) as execute:
            if not isinstance(server, PostgreSql):
                execute("FLUSH TABLES WITH READ LOCK")
                time.sleep(fault.seconds)
                execute("UNLOCK TABLES")
                return f"all commits waited for {fault.seconds:g} s"
            try:
                execute(f"ALTER SYSTEM SET {SYNCHRONOUS} = 'nowhere'")
                execute("SELECT pg_reload_conf()")
                probe = threading.Thread(target=lambda: took.append(_seconds_of_commit(server)))
                probe.start()
                time.sleep(fault.seconds)
            finally:
                execute(f"ALTER SYSTEM RESET {SYNCHRONOUS}")
                execute("SELECT pg_reload_conf()")
            probe.join()
        slow = took and took[0] >= PROBE_SHARE * fault.seconds
        return f"a commit took {took[0]:.2f} s" if slow else ""

    def _full_disk(self, fault: Fault) -> str:
        """Leave a server no space for larger files."""
        if fault.target not in self.stores.disks:
            return ""
        server, disk = self.stores.servers[fault.target], self.stores.disks[fault.target]
        write = _write_to_redis if isinstance(server, Redis) else _write_to_table
        with write(server) as grow:
            end, refusal = time.monotonic() + fault.seconds, ""
            disk.fill()
            try:
                while time.monotonic() < end:
                    grow()
                    time.sleep(0.02)
            except FaultFailed as error:
                refusal = str(error)
                time.sleep(max(0.0, end - time.monotonic()))
            finally:
                disk.free()
        return f"a write was refused: {refusal:.80}" if refusal else ""


def is_refusal(reply: bytes) -> bool:
    """Return whether a server's first reply refuses the connection."""
    return b"max number" in reply or reply[:1] == b"E" or reply[4:5] == b"\xff"


@contextmanager
def _direct(server: Server) -> Iterator[Callable[[str], Any]]:
    """Yield a function that executes a statement on a connection without links.

    It raises FaultFailed with the server's error.
    """
    is_postgresql = isinstance(server, PostgreSql)
    driver: Any = import_module("psycopg" if is_postgresql else "MySQLdb")
    where = {"user": USER, "dbname": "shop"} if is_postgresql else {"user": "root", "db": "shop"}

    def execute(statement: str) -> None:
        try:
            connection.cursor().execute(statement)
        except driver.Error as error:
            raise FaultFailed(str(error)) from error

    try:
        connection = driver.connect(host=HOST, port=server.port, autocommit=True, **where)
    except driver.Error as error:
        raise FaultFailed(str(error)) from error
    with closing(connection):
        yield execute


def _seconds_of_commit(server: Server) -> float:
    with _direct(server) as execute:
        started = time.monotonic()
        execute(WRITTEN_COMMIT)
        return time.monotonic() - started


@contextmanager
def _write_to_table(server: Server) -> Iterator[Callable[[], Any]]:
    """Yield a function that makes a table larger, or raises FaultFailed."""
    with _direct(server) as execute:
        execute("CREATE TABLE IF NOT EXISTS torture_disk (line TEXT)")
        rows = " UNION ALL ".join([f"SELECT {MUCH}"] * 1000)
        try:
            yield lambda: execute(f"INSERT INTO torture_disk {rows}")
        finally:
            with suppress(FaultFailed):
                execute("DROP TABLE torture_disk")


@contextmanager
def _write_to_redis(server: Server) -> Iterator[Callable[[], Any]]:
    """Turn the append-only file on; yield a function that writes, or raises FaultFailed."""
    with redis.Redis.from_url(server.url) as direct:

        def grow() -> None:
            try:
                direct.set("torture-disk", "x")
            except redis.ResponseError as error:
                raise FaultFailed(str(error)) from error

        direct.config_set("appendonly", "yes")
        until(lambda: not direct.info("persistence")["aof_rewrite_in_progress"], "the file")
        try:
            yield grow
        finally:
            direct.config_set("appendonly", "no")
            direct.delete("torture-disk")
