"""`locking.idempotent` and `locking.Attempt`: one effect and one answer for each key."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Group
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import IntegrityError, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse, JsonResponse
from django.test import RequestFactory
from django.utils import timezone

from locking import (
    Answer,
    Attempt,
    KeyInFlight,
    KeyReused,
    KeyUnusable,
    idempotency,
    idempotent,
    locks,
)
from locking.idempotency import BESIDE, KEPT_FOR, is_key, prune
from locking.jobs.tasks import prune_idempotency_keys
from locking.models import IdempotencyKey
from tests.locking.scripted import PATH, ScriptedBackend, silent

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

# What happens once or twice is a new group: an effect that nothing but the key guards.


@pytest.fixture(autouse=True)
def backend(settings) -> ScriptedBackend:
    settings.LOCKS = {"scripted": {"BACKEND": PATH}}
    settings.LOCK_POLICY = {"BACKEND": "scripted", "STRATEGY": "conditional"}
    return locks["scripted"]


def effects() -> int:
    return Group.objects.count()


def act() -> None:
    Group.objects.create(name=f"effect {effects()}")


def do(key: str = "k", user: object = 1, request: bytes = b"r", wait: float = 0.01) -> Answer:
    with Attempt(user=user, key=key, request=request, wait=wait) as attempt:
        if attempt.answer is None:
            with transaction.atomic():
                act()
                attempt.keep(Answer(body=b"effect %d" % effects(), headers={"X-Way": "out"}))
    assert attempt.answer is not None
    return attempt.answer


# --- services -----------------------------------------------------------------------------------


def test_the_second_send_gets_the_first_answer() -> None:
    first = do()
    assert first == Answer(body=b"effect 1", status=200, headers={"X-Way": "out"})
    assert (do(), effects()) == (first, 1)
    assert do("another").body == b"effect 2"


def test_without_it_the_effect_is_doubled() -> None:
    """The control for all tests here."""
    act()
    act()
    assert effects() == 2


def test_a_key_is_of_one_user_and_of_one_request() -> None:
    first = do("k", user=1)
    # No way of cutting user and key elsewhere makes them equal; nor does a collation.
    for user, key in ((2, "k"), ("1k", ""), ("", "1k"), (1, "K"), (1, "ḱ"), (1, "k ")):
        if key:
            do(key, user=user)
    assert effects() == 6
    with pytest.raises(KeyReused):
        do("k", request=b"another")
    assert (do("k"), effects()) == (first, 6)


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\0", "a\nb", "\x7f", "\u202e", "\ud800"])
def test_keys_that_are_none(key) -> None:
    with pytest.raises(KeyUnusable):
        do(key)
    assert effects() == 0


def test_the_longest_key() -> None:
    assert is_key("键" * 255)
    assert do("键" * 255) == do("键" * 255)


@pytest.mark.parametrize("error", [ValueError, IntegrityError])
def test_a_refusal_keeps_nothing_and_the_key_may_be_sent_again(error) -> None:
    def refuse() -> None:
        with Attempt(user=1, key="k", request=b"r") as attempt, transaction.atomic():
            act()
            attempt.keep(Answer(body=b"never"))
            raise error

    with pytest.raises(error):
        refuse()
    assert (effects(), IdempotencyKey.objects.count()) == (0, 0)
    assert do().body == b"effect 1"


def test_an_error_after_the_commit_does_not_hide_the_answer(caplog) -> None:
    with caplog.at_level(logging.WARNING), Attempt(user=1, key="k", request=b"r") as attempt:
        attempt.keep(Answer(body=b"done"))
        raise ConnectionError("the reply to COMMIT was lost")
    assert (attempt.answer, attempt.is_replay) == (Answer(body=b"done"), True)
    assert "reply to COMMIT" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_an_answer_is_kept_in_a_transaction_only() -> None:
    outside = pytest.raises(TransactionManagementError)
    with outside, Attempt(user=1, key="k", request=b"r") as attempt:
        attempt.keep(Answer(body=b"too early"))
    assert not IdempotencyKey.objects.exists()
    do()


def test_an_error_while_replaying_is_the_callers_own() -> None:
    do()
    with pytest.raises(ValueError, match="mine"), Attempt(user=1, key="k", request=b"r"):
        raise ValueError("mine")


def meanwhile(action: Callable[[], object]) -> None:
    """In another thread, which holds locks of its own."""
    thread = Thread(target=action)
    thread.start()
    thread.join()


def test_in_flight(backend) -> None:
    began, go_on = Event(), Event()
    lock = backend.lock(BESIDE + Attempt(user=1, key="k", request=b"r").digest)

    def hold() -> None:
        with lock:
            began.set()
            go_on.wait(10)

    holder = Thread(target=hold)
    holder.start()
    assert began.wait(10)
    with pytest.raises(KeyInFlight):
        do()
    with pytest.raises(KeyInFlight):
        do(request=b"another")
    assert effects() == 0
    do("another")
    go_on.set()
    holder.join()
    assert do().body == b"effect 2"


def test_a_silent_lock_service_stops_nobody(backend, caplog) -> None:
    backend.then("acquire", silent)
    first = do()
    assert "in flight" in caplog.text
    backend.then("release", silent)
    assert do() == first
    assert effects() == 1


def test_two_that_both_hold_the_lock_have_one_effect(backend) -> None:
    """The lock expired under the first; the row decides, and the first takes its answer over."""
    with Attempt(user=1, key="k", request=b"r") as late:
        assert late.answer is None
        backend.reset_after_fork()  # its lease is gone
        other = do()
        with transaction.atomic():
            act()
            late.keep(Answer(body=b"late"))
    assert (late.answer, late.is_replay, effects()) == (other, True, 1)


def test_prune_deletes_what_is_old_and_nothing_else(monkeypatch) -> None:
    monkeypatch.setattr(idempotency, "PRUNED_AT_ONCE", 2)
    for number in range(6):
        do(str(number))
    old = IdempotencyKey.objects.values_list("pk", flat=True)[:5]
    IdempotencyKey.objects.filter(pk__in=list(old)).update(
        created_at=timezone.now() - KEPT_FOR - timedelta(seconds=1)
    )
    assert prune_idempotency_keys() == 5
    assert IdempotencyKey.objects.count() == 1
    assert prune() == 0


# --- views --------------------------------------------------------------------------------------


@pytest.fixture
def user():
    return get_user_model().objects.create(username="u")


@idempotent(wait=0.01)
def view(request, *, attempt: Attempt) -> HttpResponse:
    """Says how often it acted."""
    if "refuse" in request.POST:
        return HttpResponse("no", status=409)
    with transaction.atomic():
        act()
        if "forget" in request.POST:
            return HttpResponse("not kept")
        answer = JsonResponse({"effects": effects()}, status=201, headers={"Location": "/x/"})
        answer.set_cookie("seen", "1")
        return attempt.keep(answer)


def send(user, form: object = None, *, path: str = "/pay/", do=view, **options) -> HttpResponse:
    request = RequestFactory().post(path, {} if form is None else form, **options)
    request.user = user
    return do(request)


def said(response: HttpResponse) -> tuple[object, ...]:
    return response.status_code, dict(response.items()), response.content


KEY = {"Idempotency-Key": "k"}


def test_a_view_answers_each_key_once(user) -> None:
    first = send(user, {"idempotency_key": "k", "csrfmiddlewaretoken": "a"})
    assert said(first) == (
        201,
        {"Content-Type": "application/json", "Location": "/x/"},
        b'{"effects": 1}',
    )
    assert "seen" in first.cookies
    again = send(user, {"idempotency_key": "k", "csrfmiddlewaretoken": "b"})
    assert said(again) == said(first)
    assert not again.cookies, "a cookie belongs to the session that got it"
    assert said(send(user, headers=KEY)) == said(first)
    assert effects() == 1


@pytest.mark.parametrize(
    ("form", "headers"),
    [({}, {}), ({"idempotency_key": ["a", "b"]}, {}), ({"idempotency_key": "a"}, KEY)],
    ids=["none", "two", "two ways"],
)
def test_a_view_needs_one_key(user, form, headers) -> None:
    refused = send(user, form, headers=headers)
    assert (refused.status_code, effects()) == (400, 0)
    assert b"idempotency key" in refused.content


def test_what_makes_it_another_request(user) -> None:
    def file(content: bytes) -> SimpleUploadedFile:
        return SimpleUploadedFile("a.txt", content)

    def form(content: bytes) -> dict[str, object]:
        return {"a": ["1", "2"], "file": file(content), "idempotency_key": "k"}

    first = send(user, form(b"x"))
    assert said(send(user, form(b"x"))) == said(first)
    for changed in (
        form(b"y"),
        {**form(b"x"), "a": ["2", "1"]},
        {**form(b"x"), "b": "1"},
        {"idempotency_key": "k"},
    ):
        assert send(user, changed).status_code == 422
    assert send(user, form(b"x"), path="/cancel/").status_code == 422
    assert send(user, {"a": 1}, headers=KEY, content_type="application/json").status_code == 422
    assert effects() == 1


def test_bodies_that_are_no_forms(user) -> None:
    first = send(user, {"a": 1}, headers=KEY, content_type="application/json")
    assert first.status_code == 201
    again = send(user, {"a": 1}, headers=KEY, content_type="application/json")
    assert said(again) == said(first)
    other = send(user, {"a": 2}, headers=KEY, content_type="application/json")
    assert (other.status_code, effects()) == (422, 1)


def test_a_view_in_flight(user, backend) -> None:
    held = backend.lock(BESIDE + Attempt(user=user.pk, key="k", request=b"").digest)
    meanwhile(held.acquire)
    refused = send(user, headers=KEY)
    assert (refused.status_code, refused["Retry-After"], effects()) == (409, "1", 0)
    backend.reset_after_fork()
    assert send(user, headers=KEY).status_code == 201


def test_a_refusal_of_a_view_is_not_kept(user) -> None:
    assert send(user, {"refuse": 1}, headers=KEY).status_code == 409
    assert not IdempotencyKey.objects.exists()
    assert send(user, {"refuse": 1}, headers=KEY).status_code == 409
    assert send(user, headers=KEY).status_code == 201


def test_a_refusal_because_another_send_was_faster_is_its_answer(user) -> None:
    @idempotent
    def late(request, *, attempt: Attempt) -> HttpResponse:
        meanwhile_answer = HttpResponse("faster", status=201)
        with transaction.atomic():
            attempt.keep(meanwhile_answer)
        return HttpResponse("too late", status=409)

    assert said(send(user, headers=KEY, do=late))[::2] == (201, b"faster")


def test_an_answer_that_was_not_kept_is_a_bug(user) -> None:
    with pytest.raises(RuntimeError, match="view did not keep its answer"):
        send(user, {"forget": 1}, headers=KEY)


def test_strangers_have_no_keys(user) -> None:
    with pytest.raises(PermissionDenied):
        send(AnonymousUser(), headers=KEY)


def test_staff_look_at_the_keys_and_change_none(admin_client) -> None:
    do(user="li")
    row = IdempotencyKey.objects.get()
    page = "/admin/locking/idempotencykey/"
    assert "li" in admin_client.get(page).text
    assert "effect 1" in admin_client.get(f"{page}{row.pk}/change/").text
    for path in (f"{page}add/", f"{page}{row.pk}/delete/", f"{page}{row.pk}/change/"):
        assert admin_client.post(path, {"post": "yes"}).status_code == 403
    assert IdempotencyKey.objects.exists()


def test_a_send_costs_one_look_and_one_row(django_assert_num_queries) -> None:
    with django_assert_num_queries(2), Attempt(user=1, key="k", request=b"r") as attempt:
        attempt.keep(Answer(body=b""))
    with django_assert_num_queries(1), Attempt(user=1, key="k", request=b"r"):
        pass
