"""System checks of the lock settings, each with its own id."""

import math
import re

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections

from devservers import Redis, start_all, stop_all
from locking import lock, locks, policy
from locking.checks import (
    check_atomic_requests,
    check_jobs,
    check_locks,
    check_policy_row,
    check_single_flight,
)
from locking.jobs.tasks import resend_unfinished_runs
from locking.models import LockPolicy
from tests.locking.modes import PATH as PATH_OF_MODES
from tests.locking.scripted import PATH

GOOD = {"BACKEND": PATH}
POLICY = {"BACKEND": "a"}
MODES = {"BACKEND": "a", "MODES": PATH_OF_MODES, "MODE": "checked"}


URLS = [f"redis://127.0.0.1:{port}" for port in (1, 2, 3)]
BAD_URLS = (
    "",
    None,
    7,
    "127.0.0.1:6379",
    "redis://",  # each machine would lock on a server of its own
    "redis:///0",
    "redis://:secret@/0",
    "redis://host:port",
    "redis://host/?bogus=1",
    "redis://host/?socket_timeout=soon",
    "http://host",
)


def redis(**conf: object) -> dict[str, object]:
    return {"BACKEND": "locking.backends.redis.RedisBackend", "LOCATION": URLS[0], **conf}


def redlock(urls: object, **conf: object) -> dict[str, object]:
    return {"BACKEND": "locking.backends.redlock.RedLockBackend", "LOCATION": urls, **conf}


def zookeeper(hosts: object, **options: object) -> dict[str, object]:
    path = "locking.backends.zookeeper.ZooKeeperBackend"
    return {"BACKEND": path, "LOCATION": hosts, "OPTIONS": options}


def database(alias: object) -> dict[str, object]:
    return {"BACKEND": "locking.backends.database.DatabaseBackend", "LOCATION": alias}


def ids(settings, conf: dict[str, object], policy: dict[str, str] = POLICY) -> list[str]:
    settings.LOCKS = {"a": conf}
    settings.LOCK_POLICY = policy
    return [str(found.id) for found in check_locks()]


@pytest.mark.parametrize(
    ("conf", "id"),
    [
        ({**GOOD, "TLL": 6}, "locking.E001"),
        ({"LOCATION": "x"}, "locking.E002"),
        ({"BACKEND": "locking.backends.absent.Backend"}, "locking.E002"),
        ({"BACKEND": "locking.backends.none.Absent"}, "locking.E002"),
        ({"BACKEND": "nonsense"}, "locking.E002"),
        ({"BACKEND": "collections.deque"}, "locking.E002"),
        *(({**GOOD, "TTL": ttl}, "locking.E003") for ttl in (0, -1, "6", None, True)),
        *(({**GOOD, "TTL": ttl}, "locking.E003") for ttl in (math.inf, math.nan, 90_000)),
        *(({**GOOD, "TIMEOUT": timeout}, "locking.E004") for timeout in (0, -1, "2", None)),
        ("redis://host", "locking.E001"),
        (None, "locking.E001"),
        ({"BACKEND": None}, "locking.E002"),
        ({"BACKEND": ""}, "locking.E002"),
        ({**GOOD, "OPTIONS": ["PREFIX"]}, "locking.E010"),
        ({**GOOD, "OPTIONS": {"PREFIX": "a:"}}, "locking.E011"),
        *((redis(OPTIONS={"SOCKET_TIMEOUT": value}), "locking.E012") for value in (0, "1", None)),
        (redis(OPTIONS={"PREFIX": None}), "locking.E012"),
        *((redis(LOCATION=url), "locking.E020") for url in BAD_URLS),
        *((redlock([*URLS[:2], url]), "locking.E031") for url in BAD_URLS),
        (redlock(",".join(URLS)), "locking.E031"),
        (redlock(URLS, OPTIONS="none"), "locking.E010"),
        (redlock(URLS, TTL="6"), "locking.E003"),
        (redlock(URLS, OPTIONS={"NODE_TIMEOUT": None}), "locking.E012"),
        (redlock([*URLS[:2], "redis+cluster://c"]), "locking.E031"),
        (redlock(URLS[:2]), "locking.E032"),
        (redlock([*URLS, "redis://127.0.0.1:4"]), "locking.E032"),
        (redlock([*URLS[:2], "redis://127.0.0.1:1/5"]), "locking.E033"),
        (redlock(URLS, OPTIONS={"NODE_TIMEOUT": 0.61}), "locking.E034"),
        (redlock(URLS, OPTIONS={"RESTART_DELAY": 5.9}), "locking.E035"),
        *((zookeeper(hosts), "locking.E041") for hosts in ("", None, 7, [None], "a,,b", "a b")),
        *((zookeeper("a", SESSION_TIMEOUT=value), "locking.E012") for value in (0, -1.0, 61, "6")),
        *((zookeeper("a", PREFIX=prefix), "locking.E012") for prefix in ("locks", "/")),
        (zookeeper("a", CONNECT_TIMEOUT=0), "locking.E012"),
        *((zookeeper("a", PASSWORD=value), "locking.E012") for value in (None, 7, "a b")),
        *((database(alias), "locking.E051") for alias in (["default"], "absent", 7)),
    ],
)
def test_wrong_backend_settings_are_reported(settings, conf, id) -> None:
    assert ids(settings, conf) == [id]
    with pytest.raises(ImproperlyConfigured, match=re.escape(check_locks()[0].msg)):
        locks["a"]  # a WSGI server does not run the checks


@pytest.mark.parametrize("entries", [{}, [], None, "redis://host"])
def test_locks_must_be_a_dict(settings, db, entries) -> None:
    settings.LOCKS = entries
    assert [found.id for found in check_locks()] == ["locking.E000"]
    with pytest.raises(SystemCheckError, match=r"locking\.E000"):
        call_command("check", databases=["default"])
    with pytest.raises(ImproperlyConfigured, match="LOCKS is"):
        locks["a"]


def test_without_settings_locks_hold_within_the_process(settings, db) -> None:
    del settings.LOCKS, settings.LOCK_POLICY
    assert [found.id for found in check_locks()] == ["locking.W001"]
    policy.invalidate()
    with lock("a") as lease:
        assert lease.backend.capabilities.exclusion == "process"


def test_password_is_not_shown(settings) -> None:
    bad = "redis+sentinel://u:secret@host/locks/x?sentinel_password=secret"
    wrong = [
        redis(LOCATION="redis://u:secret@host:port/0"),
        redis(LOCATION=bad),
        zookeeper("u:secret@a:2181"),
        zookeeper("a", PASSWORD="my secret"),  # noqa: S106
        {**zookeeper("a"), "OPTIONS": [("PASSWORD", "secret")]},
    ]
    settings.LOCKS = dict(zip("abcde", wrong, strict=True))
    settings.LOCK_POLICY = POLICY
    assert ["secret" in found.msg for found in check_locks()] == [False] * len(wrong)


def test_alias_of_the_active_policy_must_exist(settings, db) -> None:
    settings.LOCKS, settings.LOCK_POLICY = {"a": GOOD}, POLICY
    policy.invalidate()
    policy.stored_policy()
    assert check_policy_row(databases=["default"]) == []
    settings.LOCKS = {"renamed": GOOD}
    assert [found.id for found in check_policy_row(databases=["default"])] == ["locking.E007"]
    assert check_policy_row(databases=None) == [], "manage.py check asks no database by default"


@pytest.mark.parametrize(
    ("policy", "id"),
    [
        ({**POLICY, "BACKEND": "b"}, "locking.E005"),
        ({}, "locking.E005"),
        *((wrong, "locking.E005") for wrong in (None, "redis", ["a"])),
        ({**POLICY, "STRATEGY": "checked"}, "locking.E005"),
        ({**POLICY, "MODE": "checked"}, "locking.E006"),
        ({**POLICY, "MODES": PATH_OF_MODES}, "locking.E006"),
        ({**MODES, "MODE": "hopeful"}, "locking.E006"),
        *(({**MODES, "MODES": path}, "locking.E006") for path in (7, "", "absent.Modes", PATH)),
    ],
)
def test_wrong_policy_settings_are_reported(settings, policy, id) -> None:
    assert ids(settings, GOOD, MODES) == []
    assert ids(settings, GOOD, policy) == [id]


@pytest.mark.parametrize(("conf", "stored"), [(POLICY, "checked"), (MODES, "removed"), (MODES, "")])
def test_mode_of_the_active_policy_must_exist(settings, db, conf, stored) -> None:
    settings.LOCKS, settings.LOCK_POLICY = {"a": GOOD}, conf
    policy.invalidate()
    policy.stored_policy()
    assert check_policy_row(databases=["default"]) == []
    LockPolicy.objects.update(mode=stored)
    (found,) = check_policy_row(databases=["default"])
    assert (found.id, repr(stored) in found.msg) == ("locking.E009", True)
    command = re.search(r"`manage.py (.*)`", found.hint.replace("MODE", "checked"))
    call_command(*command[1].split(), "--force")
    assert check_policy_row(databases=["default"]) == []


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({}, None),
        ({"CACHE": "default", "LOCK": "redis", "LOCK_TTL": 0.5, "TIMEOUT": 3}, None),
        (None, "give a dict"),
        (["a"], "give a dict"),
        ({"TTL": 2.0}, "unknown key 'TTL'"),
        ({"CACHE": "absent"}, "CACHE 'absent' is not in CACHES"),
        ({"LOCK": "absent"}, "LOCK 'absent' is not in LOCKS"),
        ({"LOCK_TTL": 0}, "LOCK_TTL is 0"),
        ({"TIMEOUT": "5"}, "TIMEOUT is '5'"),
    ],
)
def test_single_flight_settings_are_checked(settings, conf, what) -> None:
    settings.LOCK_SINGLE_FLIGHT = conf
    found = check_single_flight()
    assert [str(error.id) for error in found] == (["locking.E008"] if what else [])
    assert not what or what in found[0].msg


def test_atomic_requests_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not check_atomic_requests()
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    (warning,) = check_atomic_requests()
    assert (warning.id, "default" in warning.msg) == ("locking.W002", True)


def test_runs_that_nobody_sends_again_are_warned_about(settings) -> None:
    settings.CELERY_BEAT_SCHEDULER = "locking.jobs.beat:Scheduler"
    settings.CELERY_BEAT_SCHEDULE = {"mine": {"task": "mine", "schedule": 5.0}}
    assert [found.id for found in check_jobs()] == ["locking.W003"]
    settings.CELERY_BEAT_SCHEDULE["again"] = {"task": resend_unfinished_runs.name, "schedule": 5.0}
    assert check_jobs() == []


@pytest.mark.faults(row=18, backend="redis, redlock", fired="allkeys-lru; control: noeviction")
@pytest.mark.parametrize("evicts", [True, False], ids=["evicting", "control: noeviction"])
def test_row_18_check_refuses_stores_that_evict(settings, evicts: bool) -> None:
    config = ["--maxmemory", "50mb", "--maxmemory-policy"]
    config.append("allkeys-lru" if evicts else "noeviction")
    servers = [Redis(config=config) for _ in range(3)]
    urls = [server.url for server in servers]
    settings.LOCKS = {"redis": redis(LOCATION=urls[0]), "redlock": redlock(urls)}
    start_all(servers)
    try:
        if not evicts:
            call_command("check")
            return
        with pytest.raises(SystemCheckError) as refused:
            call_command("check")
    finally:
        stop_all(servers)
    assert str(refused.value).count("(locking.E021)") == 1 + 3  # redis, and redlock's masters
    assert all(str(server.port) in str(refused.value) for server in servers)
