"""Passwords: a limited number of threads hashes or waits, and old hashes are replaced."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import pytest
from django.contrib.auth.hashers import (
    Argon2PasswordHasher,
    PBKDF2PasswordHasher,
    make_password,
)
from django.http import HttpResponse
from django.test import Client
from django.utils.crypto import get_random_string

from devservers.faults.waiting import until
from shop.errors import Overloaded
from shop.models import TokenRevocation, User
from shop.platform import passwords
from tests.shop.making import PASSWORD, sign_in, signed_in


class SlowHashes:
    """Hashes that last until `end`; `running` counts those under way."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.end = threading.Event()
        self._guard = threading.Lock()

    def encode(self, *arguments: object) -> str:
        with self._guard:
            self.running += 1
            self.most = max(self.most, self.running)
        self.end.wait(30)
        with self._guard:
            self.running -= 1
        return "argon2$hash"


@pytest.fixture
def hashes() -> Iterator[SlowHashes]:
    slow = SlowHashes()
    with patch.object(Argon2PasswordHasher, "encode", lambda *arguments: slow.encode(*arguments)):
        yield slow
        slow.end.set()


def test_few_hashes_run_at_a_time_and_few_threads_wait(hashes, settings, monkeypatch) -> None:
    settings.MAX_HASHES, settings.WEB_THREADS = 2, 6  # two hash, two wait, two threads stay free
    monkeypatch.setattr(passwords, "WAIT", 30.0)
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(make_password, PASSWORD) for _ in range(8)]
        until(lambda: sum(result.done() for result in results) == 4, "the refusals")
        until(lambda: hashes.running == 2, "the hashes")
        refused = [result.exception() for result in results if result.done()]
        hashes.end.set()
    assert all(isinstance(error, Overloaded) and error.retry_after for error in refused)
    assert hashes.most == 2
    assert sum(result.exception() is None for result in results) == 4, "the waiters hash, too"
    assert make_password(PASSWORD), "all slots are free again"


def test_wait_for_a_hash_is_bounded(hashes, settings, monkeypatch) -> None:
    settings.MAX_HASHES, settings.WEB_THREADS = 1, 8
    monkeypatch.setattr(passwords, "WAIT", 0.05)
    with ThreadPoolExecutor(1) as other:
        other.submit(make_password, PASSWORD)
        until(lambda: hashes.running == 1, "the other's hash")
        with pytest.raises(Overloaded):
            make_password(PASSWORD)
        hashes.end.set()


def test_process_with_one_thread_can_hash(settings) -> None:
    settings.WEB_THREADS = 1
    assert make_password(PASSWORD)


@pytest.mark.django_db
def test_sign_in_with_an_old_hash_replaces_it_and_ends_no_tokens() -> None:
    old = PBKDF2PasswordHasher().encode(PASSWORD, get_random_string(22), 1)
    li, laptop = User.objects.create(username="li", password=old), Client()
    assert sign_in(laptop, "li").status_code == 302
    li.refresh_from_db()
    assert li.password.startswith("argon2$argon2id$v=19$m=19456,t=2,p=1$")
    assert not TokenRevocation.objects.filter(subject__startswith="customer:").exists()
    assert laptop.get("/accounts/profile/").status_code == 200
    li.set_password("another-kettle-7")
    li.save()
    assert laptop.get("/accounts/profile/").status_code == 302, "a new password ends it"


@pytest.mark.django_db
def test_rehash_does_not_restore_a_password_that_was_changed_meanwhile() -> None:
    old = PBKDF2PasswordHasher().encode(PASSWORD, get_random_string(22), 1)
    li = User.objects.create(username="li", password=old)
    User.objects.filter(pk=li.pk).update(password="")
    assert li.check_password(PASSWORD)
    assert User.objects.get(pk=li.pk).password == ""


def posts(li: User, amy: User) -> dict[str, tuple[Client, dict[str, str]]]:
    """Return a client and a form for every page that hashes a password."""
    customer, staff = signed_in(li), signed_in(amy)
    new = {"password1": PASSWORD, "password2": PASSWORD}
    changed = {"new_password1": "another-kettle-7", "new_password2": "another-kettle-7"}
    return {
        "/accounts/sign-in/": (Client(), {"username": "li", "password": PASSWORD}),
        "/accounts/sign-up/": (Client(), {"username": "wang", **new}),
        "/accounts/password/": (customer, {"old_password": PASSWORD, **changed}),
        f"/admin/shop/user/{li.pk}/password/": (staff, {**new, "usable_password": "true"}),
    }


@pytest.mark.django_db
def test_every_page_that_hashes_responds_503_and_may_be_sent_again(settings, monkeypatch) -> None:
    settings.SIGN_IN_FAILURE_LIMIT = "2/minute"
    li = User.objects.create_user("li", password=PASSWORD)
    amy = User.objects.create_superuser("amy")

    def overloaded(kind: str, number: int, *, wait: float) -> None:
        raise Overloaded(retry_after=2)

    for path, (client, form) in posts(li, amy).items():
        with monkeypatch.context() as patched:
            patched.setattr(passwords, "_slot", overloaded)
            for _ in range(3):
                page: HttpResponse = client.post(path, form)
                assert (page.status_code, page["Retry-After"]) == (503, "2"), path
        # Refusals count neither as wrong passwords nor as taken names.
        assert client.post(path, form).status_code == 302, path
