"""The URL in LOCATION: one server, a master that Sentinels name, or the nodes of a Cluster.

redis://user:password@host:6379/0       rediss:// with TLS, unix:///path?db=0
redis+sentinel://user:password@host1:26379,host2:26379/service/0
redis+cluster://user:password@host1:6379,host2:6379
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

import redis

from locking.backends.redis.connection import Connection, Disconnected, Refused, is_timeout
from locking.exceptions import LockUnavailable

_GROUP = re.compile(
    r"(rediss?)\+(sentinel|cluster)://(?:([^/?]*)@)?([^/?@]*)(?:/([^?]*))?(?:\?(.*))?"
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?")
_SENTINEL_LOGIN = ("sentinel_username", "sentinel_password")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")

_responsive: dict[str, str] = {}
"""By URL: the Sentinel that named the master last, which is asked first."""


@dataclass(frozen=True)
class Group:
    """Several servers under one URL: the Sentinels of a service, or nodes of a Cluster."""

    kind: str
    scheme: str
    login: str
    query: str
    service: str
    database: str
    members: tuple[str, ...]
    """URLs of the Sentinels, or of the nodes to ask first."""

    def server(self, host: str, port: object) -> str:
        """Return the URL of a server with locks."""
        host = f"[{host}]" if ":" in host else host
        return _url(self.scheme, self.login, f"{host}:{port}", self.database, self.query)


def _url(scheme: str, login: str, host: str, database: str, query: str) -> str:
    return f"{scheme}://{login}{'@' * bool(login)}{host}/{database}{'?' * bool(query)}{query}"


@lru_cache(maxsize=64)
def group_of(url: str) -> Group | None:
    """Return the servers of a Sentinel or Cluster URL, None for one server; raise ValueError."""
    if "+" not in url.partition("://")[0]:
        return None
    found = _GROUP.fullmatch(url)
    if found is None:
        raise ValueError("write redis+sentinel://host1,host2,host3/service or redis+cluster://host")
    scheme, kind, login, hosts, path, query = (part or "" for part in found.groups())
    service, _, database = path.partition("/") if kind == "sentinel" else ("", "", path)
    if kind == "sentinel" and not service:
        raise ValueError("name the service that the Sentinels watch: .../service/0")
    if not re.fullmatch(r"\d*", database) or (kind == "cluster" and database.strip("0")):
        raise ValueError(f"{database!r} is no database; a Cluster has only database 0")
    given = parse_qsl(query, keep_blank_values=True)
    query = urlencode([pair for pair in given if pair[0] not in _SENTINEL_LOGIN])
    member_login, port = login, "6379"
    if kind == "sentinel":
        own = dict(given)
        user, password = (own.get(key, "") for key in _SENTINEL_LOGIN)
        member_login, port = f"{user}:{password}" * bool(password), "26379"
    members = []
    for host in hosts.split(","):
        if (parts := _HOST.fullmatch(host)) is None:
            raise ValueError(f"{host!r} is no host: write host1:{port},host2:{port}")
        members.append(_url(scheme, member_login, f"{parts[1]}:{parts[2] or port}", "", query))
    return Group(kind, scheme, login, query, service, database, tuple(members))


def connect(url: str, *, connect_timeout: float = 1.0, **options: Any) -> Connection:
    """Return a connection to the server of a URL; ask the Sentinels for the master if it names any.

    They are asked in turn, all within `connect_timeout`. A server that is no longer the master is
    left; the address is not remembered, because a new connection is rare.
    """
    group = group_of(url)
    if group is None or group.kind != "sentinel":
        return Connection(url, connect_timeout=connect_timeout, **options)
    limit = connect_timeout / len(group.members)
    failure: LockUnavailable = Refused(f"No Sentinel knows the service {group.service!r}.")
    for sentinel in sorted(group.members, key=lambda member: member != _responsive.get(url)):
        try:
            master = _ask_sentinel(sentinel, group.service, limit)
        except LockUnavailable as error:
            failure = error
            continue
        if master is None:
            continue
        try:
            connection = Connection(
                group.server(*master), connect_timeout=connect_timeout, **options
            )
            if connection.command("ROLE")[0] == "master":
                _responsive[url] = sentinel
                return connection
            connection.close()
            failure = Refused(f"{master[0]}:{master[1]} is not the master of {group.service!r}.")
        except LockUnavailable as error:
            if is_timeout(error):
                raise
            failure = error
    raise Disconnected(f"No master of {group.service!r} found: {failure}") from failure


def _ask_sentinel(url: str, service: str, limit: float) -> list[str] | None:
    sentinel = Connection(url, timeout=limit, connect_timeout=limit)
    try:
        found: list[str] | None = sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
        return found
    finally:
        sentinel.close()


def url_problem(url: Any, *, single: bool = False) -> str | None:
    """Return what is wrong with the URL, to follow "LOCATION"; None if it is usable.

    With `single`, it must name one server.
    """
    if not isinstance(url, str) or not url:
        return f"is {url!r:.60}: give a URL such as redis://host:6379/0"
    try:
        group = group_of(url)
        if group and single:
            raise ValueError("name one server, as in redis://host:6379/0")
        for one in (group.server("host", 1), *group.members) if group else (url,):
            parts = redis.connection.parse_url(one)  # type: ignore[no-untyped-call]
            tls = sorted(key for key in parts if key.startswith("ssl_"))
            if tls and not one.startswith("rediss:"):
                raise ValueError(f"{tls[0]} needs TLS: write rediss")
            for key in _FILES:
                if key in parts and not os.access(parts[key], os.R_OK):
                    raise ValueError(f"the file of {key}, {parts[key]}, cannot be read")
            redis.ConnectionPool.from_url(one).make_connection()  # connects on first use only
    except (ValueError, TypeError) as error:
        return f"{_without_password(url)!r} is not usable: {error}"
    if not (parts.get("host") or parts.get("path")):
        return f"{url!r} names no host: each machine would lock for itself"
    return None


def _without_password(url: str) -> str:
    url = re.sub(r"(password=)[^&]*", r"\1...", url)
    head, at, tail = url.rpartition("@")
    return f"{head.partition('//')[0]}//...@{tail}" if at else url
