"""System checks of the lock settings, each with its own id."""

import math

import pytest
from django.core.checks import Error
from django.core.management import call_command
from django.core.management.base import SystemCheckError

from locking.checks import check_locks, check_single_flight
from tests.locking.scripted import PATH, ScriptedBackend

GOOD = {"BACKEND": PATH}
POLICY = {"BACKEND": "a", "STRATEGY": "conditional"}


def ids(settings, conf: dict[str, object], policy: dict[str, str] = POLICY) -> list[str]:
    settings.LOCKS = {"a": conf}
    settings.LOCK_POLICY = policy
    return [str(found.id) for found in check_locks()]


def test_good_settings_pass(settings) -> None:
    assert ids(settings, GOOD) == []
    assert ids(settings, {**GOOD, "TTL": 0.5, "TIMEOUT": 3, "LOCATION": "x", "OPTIONS": {}}) == []


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
        *(({**GOOD, "TTL": ttl}, "locking.E003") for ttl in (math.inf, math.nan)),
        *(({**GOOD, "TIMEOUT": timeout}, "locking.E004") for timeout in (0, -1, "2", None)),
    ],
)
def test_wrong_backend_settings_are_reported(settings, conf, id) -> None:
    assert ids(settings, conf) == [id]


@pytest.mark.parametrize(
    ("policy", "id"),
    [
        ({**POLICY, "BACKEND": "b"}, "locking.E005"),
        ({"STRATEGY": "fenced"}, "locking.E005"),
        ({**POLICY, "STRATEGY": "hopeful"}, "locking.E006"),
        ({"BACKEND": "a"}, "locking.E006"),
    ],
)
def test_wrong_policy_settings_are_reported(settings, policy, id) -> None:
    assert ids(settings, GOOD, policy) == [id]


def test_check_of_the_backend_is_run(settings, monkeypatch) -> None:
    def check(cls, alias, conf):
        return [Error(f"{alias} has no {conf.get('LOCATION')}", id="mine.E001")]

    monkeypatch.setattr(ScriptedBackend, "check", classmethod(check))
    assert ids(settings, GOOD) == ["mine.E001"]


def test_check_command_fails_with_all_errors(settings) -> None:
    settings.LOCKS = {"a": {**GOOD, "TTL": 0}}
    settings.LOCK_POLICY = {**POLICY, "BACKEND": "b"}
    with pytest.raises(SystemCheckError, match=r"(?s)locking\.E003.*locking\.E005"):
        call_command("check")


@pytest.mark.parametrize(
    ("conf", "what"),
    [
        ({}, None),
        ({"CACHE": "default", "LOCK": "redis", "LOCK_TTL": 0.5, "TIMEOUT": 3}, None),
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
