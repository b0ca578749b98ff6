"""`idempotent` views and `Attempt`: one effect and one response for each key."""

import asyncio
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser, Group
from django.core.exceptions import PermissionDenied
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.handlers.base import BaseHandler
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import RequestFactory
from django.utils import timezone
from django.utils.decorators import method_decorator

from locking import LockMisuse, idempotency
from locking.exceptions import KeyReused, KeyUnusable
from locking.idempotency import KEPT_FOR, Attempt, StoredResponse, prune
from locking.idempotency.views import idempotent
from locking.jobs.tasks import prune_idempotency_keys
from locking.models import IdempotencyKey
from tests.locking.calls import held_by_another
from tests.locking.scripted import unavailable

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.stores,
    pytest.mark.usefixtures("backend"),
]

# The effect is a new group: nothing but the key prevents a second one.


def effects() -> int:
    return Group.objects.count()


def act() -> None:
    Group.objects.create(name=f"effect {effects()}")


def stored(attempt: Attempt, response: Any) -> Any:
    with transaction.atomic():
        act()
        return attempt.store(response)


def do(key: str = "k", user: object = 1, request: bytes = b"r") -> StoredResponse:
    with Attempt(user=user, key=key, request=request, wait=0.01) as attempt:
        if attempt.response is None:
            body = b"effect %d" % (effects() + 1)
            stored(attempt, StoredResponse(body=body, headers={"X-Way": "out"}))
    assert attempt.response is not None
    return attempt.response


def test_key_belongs_to_one_user_and_one_request() -> None:
    first = do("k", user=1)
    assert first == StoredResponse(body=b"effect 1", status=200, headers={"X-Way": "out"})
    # No other division into user and key, and no collation, makes two digests equal.
    for user, key in ((2, "k"), ("1k", ""), ("", "1k"), (1, "K"), (1, "ḱ"), (1, "k ")):
        if key:
            do(key, user=user)
    assert effects() == 6
    with pytest.raises(KeyReused):
        do("k", request=b"another")
    assert (do("k"), effects()) == (first, 6)


@pytest.mark.parametrize(
    "key", ["", " ", "x" * 256, "a\0", "a\nb", "\x7f", "\u202e", "\ud800", "a\ufffd"]
)
def test_invalid_key_is_refused(key) -> None:
    with pytest.raises(KeyUnusable):
        do(key)
    assert effects() == 0


def test_failed_attempt_stores_nothing() -> None:
    attempt = Attempt(user=1, key="k", request=b"r")
    with pytest.raises(IntegrityError), attempt, transaction.atomic():  # noqa: PT012
        stored(attempt, StoredResponse(body=b"never"))
        raise IntegrityError
    assert (effects(), IdempotencyKey.objects.count()) == (0, 0)
    assert do().body == b"effect 1"


def test_error_after_commit_returns_the_stored_response() -> None:
    with Attempt(user=1, key="k", request=b"r") as attempt:
        attempt.store(StoredResponse(body=b"done"))
        raise ConnectionError("the reply to COMMIT was lost")
    assert (attempt.response, attempt.is_replay) == (StoredResponse(body=b"done"), True)


@pytest.mark.django_db(transaction=True)
def test_response_is_stored_only_in_a_transaction() -> None:
    outside = pytest.raises(TransactionManagementError)
    with outside, Attempt(user=1, key="k", request=b"r") as attempt:
        attempt.store(StoredResponse(body=b"too early"))
    assert not IdempotencyKey.objects.exists()


def test_error_during_replay_is_raised() -> None:
    do()
    with pytest.raises(ValueError, match="mine"), Attempt(user=1, key="k", request=b"r"):
        raise ValueError("mine")


def test_unavailable_lock_does_not_stop_an_attempt(backend) -> None:
    backend.backend.then("acquire", unavailable)
    first = do()
    backend.backend.then("release", unavailable)
    assert do() == first
    assert effects() == 1


def test_two_lock_holders_have_one_effect(backend) -> None:
    """The first lease expired: the row decides, and the first attempt returns its response."""
    with Attempt(user=1, key="k", request=b"r") as late:
        assert late.response is None
        backend.backend.reset_after_fork()  # drops the lease
        other = do()
        stored(late, StoredResponse(body=b"late"))
    assert (late.response, late.is_replay, effects()) == (other, True, 1)


def test_prune_deletes_only_expired_keys_and_asks_no_replica(monkeypatch, settings) -> None:
    def refuse(model: object, **hints: object) -> str:
        raise AssertionError("a replica was asked, where no deletion ever arrives")

    monkeypatch.setattr(idempotency, "PRUNE_BATCH", 2)
    for number in range(5):
        do(str(number))
    IdempotencyKey.objects.update(created_at=timezone.now() - KEPT_FOR - timedelta(seconds=1))
    do("new")
    settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_read=refuse)]
    assert (prune_idempotency_keys(), prune()) == (5, 0)
    settings.DATABASE_ROUTERS = []
    assert IdempotencyKey.objects.count() == 1


@pytest.fixture
def user():
    return get_user_model().objects.create(username="u")


@idempotent(wait=0.01)
def view(request, *, attempt: Attempt) -> HttpResponse:
    """Return the number of effects."""
    if "refuse" in request.POST:
        return HttpResponse("no", status=409)
    with transaction.atomic():
        act()
        if "forget" in request.POST:
            return HttpResponse("not stored")
        response = JsonResponse({"effects": effects()}, status=201, headers={"Location": "/x/"})
        response.set_cookie("seen", "1")
        return attempt.store(response)


def send(user, form: object = None, *, path: str = "/pay/", do=view, **options) -> HttpResponse:
    request = RequestFactory().post(path, {} if form is None else form, **options)
    request.user = user
    return do(request)


def content_of(response: HttpResponse) -> tuple[object, ...]:
    """Return what every sender of a key gets; only a replay is marked as one."""
    headers = {name: text for name, text in response.items() if name != "Idempotent-Replayed"}
    return response.status_code, headers, response.content


KEY = {"Idempotency-Key": "k"}


def test_view_replays_its_response(user) -> None:
    first = send(user, {"idempotency_key": "k", "csrfmiddlewaretoken": "a"})
    headers = {"Content-Type": "application/json", "Location": "/x/"}
    assert content_of(first) == (201, headers, b'{"effects": 1}')
    assert "seen" in first.cookies
    again = send(user, {"idempotency_key": "k", "csrfmiddlewaretoken": "b"})
    assert content_of(again) == content_of(first)
    assert (first.get("Idempotent-Replayed"), again["Idempotent-Replayed"]) == (None, "true")
    assert not again.cookies, "a cookie belongs to the session that received it"
    assert content_of(send(user, headers=KEY)) == content_of(first)
    assert effects() == 1


@pytest.mark.django_db(transaction=True)
def test_async_view_replays_its_response(user, backend) -> None:
    @idempotent(wait=0.01)
    async def transfer(request, *, attempt: Attempt) -> HttpResponse:
        return await sync_to_async(view.__wrapped__)(request, attempt=attempt)

    def sent() -> HttpResponse:
        request = RequestFactory().post("/pay/", headers=KEY)
        request.auser = AsyncMock(return_value=user)
        return asyncio.run(transfer(request))

    first, again = sent(), sent()
    assert (first.status_code, effects()) == (201, 1)
    assert content_of(again) == content_of(first)
    assert again["Idempotent-Replayed"] == "true"
    assert not backend.inspect(), "the key is still locked"


@pytest.mark.django_db(transaction=True)
def test_key_is_locked_until_atomic_requests_has_committed(user, backend, monkeypatch) -> None:
    """Released before the commit, the second sender did the work again."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    at_commit = []

    @idempotent(wait=0.01)
    def transfer(request, *, attempt: Attempt) -> HttpResponse:
        transaction.on_commit(lambda: at_commit.append(len(backend.inspect())))
        assert connection.in_atomic_block
        return view.__wrapped__(request, attempt=attempt)

    handler = BaseHandler()
    send(user, headers=KEY, do=handler.make_view_atomic(transfer))
    assert at_commit == [1], "the key was released before the commit"
    assert effects() == 1


@pytest.mark.parametrize(
    ("form", "headers"),
    [({}, {}), ({"idempotency_key": ["a", "b"]}, {}), ({"idempotency_key": "a"}, KEY)],
    ids=["none", "two", "two ways"],
)
def test_view_requires_exactly_one_key(user, form, headers) -> None:
    refused = send(user, form, headers=headers)
    assert (refused.status_code, effects()) == (400, 0)
    assert b"idempotency key" in refused.content


def test_changed_request_with_the_same_key_is_refused(user) -> None:
    def form(content: bytes) -> dict[str, object]:
        file = SimpleUploadedFile("a.txt", content)
        return {"a": ["1", "2"], "file": file, "idempotency_key": "k"}

    first = send(user, form(b"x"))
    assert content_of(send(user, form(b"x"))) == content_of(first)
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


@pytest.mark.parametrize("method", ["put", "patch", "post"])
@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "application/json"])
def test_body_is_part_of_the_request(user, method, kind) -> None:
    def submit(body: str) -> HttpResponse:
        request = getattr(RequestFactory(), method)("/pay/", body, content_type=kind, headers=KEY)
        request.user = user
        return view(request)

    first = submit("5")
    assert content_of(submit("5")) == content_of(first)
    assert (submit("500").status_code, effects()) == (422, 1)


def test_view_with_a_key_in_flight_returns_409(user, backend) -> None:
    with held_by_another(backend, Attempt(user=user.pk, key="k", request=b"").lock_name):
        for form in ({}, {"another": "request"}):
            refused = send(user, form, headers=KEY)
            assert (refused.status_code, refused["Retry-After"], effects()) == (409, "1", 0)
        assert send(user, headers={"Idempotency-Key": "another"}).status_code == 201
    assert send(user, headers=KEY).status_code == 201


def test_refusal_of_a_view_is_not_stored(user) -> None:
    assert send(user, {"refuse": 1}, headers=KEY).status_code == 409
    assert not IdempotencyKey.objects.exists()
    assert send(user, {"refuse": 1}, headers=KEY).status_code == 409
    assert send(user, headers=KEY).status_code == 201


@pytest.mark.parametrize("stores", [False, True])
def test_refused_view_returns_the_faster_response(user, backend, stores) -> None:
    @idempotent
    def late(request, *, attempt: Attempt) -> HttpResponse:
        backend.backend.reset_after_fork()  # drops the lease
        send(user, headers=KEY)
        try:
            return stored(attempt, HttpResponse("twice")) if stores else HttpResponse(status=409)
        except IntegrityError:
            return HttpResponse("too late", status=409)

    assert send(user, headers=KEY, do=late).content == b'{"effects": 1}'
    assert effects() == 1


@pytest.mark.parametrize(
    ("response", "content"),
    [
        (HttpResponse("card declined", status=402), b"card declined"),
        (SimpleTemplateResponse(engines["django"].from_string("{{ n }}"), {"n": 1}), b"1"),
    ],
)
def test_other_responses_are_replayed_only_the_second_time(user, response, content) -> None:
    @idempotent
    def charge(request, *, attempt: Attempt) -> HttpResponse:
        return stored(attempt, response)

    first, again = (send(user, headers=KEY, do=charge) for _ in range(2))
    assert content_of(again) == content_of(first)
    assert (first.get("Idempotent-Replayed"), again["Idempotent-Replayed"]) == (None, "true")
    assert (again.content, effects()) == (content, 1)


def test_streaming_response_undoes_the_effect(user) -> None:
    @idempotent
    def export(request, *, attempt: Attempt) -> HttpResponse:
        return stored(attempt, StreamingHttpResponse(["a", "b"]))

    with pytest.raises(TypeError, match="streaming response cannot be stored"):
        send(user, headers=KEY, do=export)
    assert effects() == 0


@pytest.mark.parametrize("kind", ["function", "method"])
def test_response_of_rest_framework_is_replayed(user, kind) -> None:
    decorators = pytest.importorskip("rest_framework.decorators")
    from rest_framework.response import Response
    from rest_framework.test import force_authenticate
    from rest_framework.views import APIView

    @idempotent
    def function(request, *, attempt: Attempt) -> Response:
        return stored(attempt, Response({"amount": request.data["amount"]}, status=201))

    class Payment(APIView):
        @method_decorator(idempotent)
        def post(self, request, *, attempt: Attempt) -> Response:
            return function.__wrapped__(request, attempt=attempt)

    sent_to = decorators.api_view(["POST"])(function) if kind == "function" else Payment.as_view()

    def pay(amount: int) -> HttpResponse:
        json = {"content_type": "application/json", "headers": KEY}
        request = RequestFactory().post("/pay/", {"amount": amount}, **json)
        force_authenticate(request, user=user)
        return sent_to(request)

    first = pay(5)
    assert (first.status_code, first.content) == (201, b'{"amount":5}')
    assert pay(5).content == first.content
    assert (pay(6).status_code, effects()) == (422, 1)


def test_view_of_ninja_is_replayed(user) -> None:
    """It reads the arguments of a request from the signature, which must not name `attempt`."""
    api = pytest.importorskip("ninja").NinjaAPI(urls_namespace="idempotent")

    @api.post("/pay/{amount}")
    @idempotent
    def pay(request, amount: int, *, attempt: Attempt) -> HttpResponse:
        return stored(attempt, JsonResponse({"amount": amount}, status=201))

    (route,) = [one for one in api.urls[0] if "pay" in str(one.pattern)]

    def sent(amount: int) -> HttpResponse:
        do = partial(route.callback, amount=amount)
        return send(user, headers=KEY, path=f"/pay/{amount}", do=do)

    first = sent(5)
    assert content_of(first)[::2] == (201, b'{"amount": 5}')
    assert content_of(sent(5)) == content_of(first)
    assert (sent(6).status_code, effects()) == (422, 1)


def test_view_must_store_its_response(user) -> None:
    with pytest.raises(RuntimeError, match="view did not store its response"):
        send(user, {"forget": 1}, headers=KEY)


def test_wait_must_be_a_number() -> None:
    with pytest.raises(LockMisuse, match="'5'"):
        idempotent(wait="5")


def test_anonymous_user_gets_403(user) -> None:
    with pytest.raises(PermissionDenied):
        send(AnonymousUser(), headers=KEY)
