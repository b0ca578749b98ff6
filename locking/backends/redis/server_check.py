"""The check that asks the servers in LOCATION whether they are fit for locks."""

from __future__ import annotations

import redis

from locking.backends.redis.addresses import connect, group_of
from locking.backends.redis.connection import Refused
from locking.exceptions import LockUnavailable


def server_problem(url: str) -> tuple[str, str] | None:
    """Return the check's number and why the server is unfit for locks, to follow "LOCATION".

    Return None also if the server does not respond or does not allow INFO. Of a Cluster, the nodes
    of the URL are asked.
    """
    group = group_of(url)
    if group and group.kind == "cluster":
        found = (_problem(node, is_cluster=True) for node in group.members)
        return next(filter(None, found), None)
    return _problem(url)


def _problem(url: str, is_cluster: bool = False) -> tuple[str, str] | None:
    try:
        connection = connect(url, timeout=0.5, connect_timeout=0.5)
        reply = str(connection.command("INFO"))
        connection.close()
    except LockUnavailable as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, redis.AuthenticationError) or str(cause).startswith(
            ("NOAUTH", "WRONGPASS")
        ):
            return "E022", f"refuses the user name or the password: {cause}"
        return ("E023", f"cannot be used: {cause}") if isinstance(cause, Refused) else None
    info = dict(line.split(":", 1) for line in reply.splitlines() if ":" in line)
    mode = info.get("redis_mode") or info.get("server_mode")  # Valkey has renamed it
    if mode == "sentinel":
        return "E023", "is a Sentinel: write redis+sentinel://host1,host2,host3/service."
    if is_cluster and mode != "cluster":
        return "E023", "is no node of a Cluster: write redis://host:6379/0."
    if mode == "cluster":
        if not is_cluster:
            return "E023", "is a node of a Cluster: write redis+cluster://host1,host2."
    elif info.get("role") == "slave":
        return "E023", "is a read-only replica: name its master."
    policy = info.get("maxmemory_policy", "noeviction")
    if info.get("maxmemory", "0") != "0" and policy != "noeviction":
        return "E021", (
            f"evicts keys when it is full (maxmemory-policy {policy}), and with them locks that "
            "are held: use a Redis of its own with maxmemory-policy noeviction."
        )
    return None
