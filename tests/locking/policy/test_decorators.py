"""`locking.locked`: names from arguments, and what a call does while the lock is held."""

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Retry
from django.core.signals import request_finished
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views import View

from locking import LockLost, LockMisuse, LockTimeout, LockUnavailable, lock, locked, locks
from locking.lease import LockStore
from tests.locking.calls import held_by_another
from tests.locking.scripted import unavailable

pytestmark = pytest.mark.usefixtures("backend")


@pytest.fixture
def held(backend: LockStore) -> Iterator[None]:
    """Hold `invoice:42` in another thread."""
    with suppress(LockLost), held_by_another(backend, "invoice:42"):
        yield


def names(alias: str = "scripted") -> list[str]:
    return [held.name for held in locks[alias].inspect()]


class TestNames:
    @pytest.mark.parametrize(
        ("template", "message"),
        [
            ("invoice:{idd}", "Did you mean 'id'"),
            ("invoice:{}", "Unknown argument ''"),
            ("invoice:{0}", "Unknown argument '0'"),
            ("invoice:{id", "expected '}'"),
            ("{id}", "begin with a text"),
            ("", "begin with a text"),
        ],
    )
    def test_bad_template_is_refused_when_the_function_is_decorated(self, template, message):
        def view(request: object, id: int) -> None: ...

        with pytest.raises(LockMisuse, match=message):
            locked(template)(view)

    @pytest.mark.parametrize(
        "options", [{"on_busy": 404}, {"on_busy": "wait"}, {"timeout": -1}, {"until": "later"}]
    )
    def test_bad_options_are_refused_at_once(self, options: dict[str, Any]) -> None:
        with pytest.raises(LockMisuse):
            locked("invoice:{id}", **options)

    def test_name_is_formatted_from_all_kinds_of_arguments(self) -> None:
        @locked("a:{one}:{two.pk}:{three[k]}:{four}:{five:03d}", using="other")
        def call(one: int, two: Any, three: Any, four: str = "d", **more: int) -> list[str]:
            return names("other")

        one = type("Row", (), {"pk": 2})()
        assert call(1, one, three={"k": 3}, five=5) == ["a:1:2:3:d:005"]
        assert names("other") == []
        with pytest.raises(LockMisuse, match="'five'"):
            call(1, one, {"k": 3})
        with pytest.raises(LockMisuse, match="cannot be formed"):
            call(1, one, {}, five=5)
        with pytest.raises(TypeError, match="missing a required argument"):
            call(1)

    @pytest.mark.parametrize("bad", ["x" * 300, "line\nbreak", "\ud800"])
    def test_argument_of_a_client_cannot_break_the_name(self, bad: str) -> None:
        @locked("page:{slug}")
        def call(slug: str) -> list[str]:
            return names()

        (name,) = call(bad)
        assert name.startswith("page:")
        assert call(bad) == [name]
        assert call(f"{bad}2") != [name]


@locked("invoice:{id}", timeout=0)
def pay(request: HttpRequest, id: int) -> HttpResponse:
    """Pay."""
    assert lock(f"invoice:{id}").lease is not None
    return HttpResponse("paid")


@locked("invoice:{id}", timeout=0, on_busy=503)
async def apay(request: HttpRequest, id: int) -> HttpResponse:
    assert f"invoice:{id}" in names()
    return HttpResponse("paid")


class Pay(View):
    @method_decorator(locked("invoice:{id}", timeout=0))
    def get(self, request: HttpRequest, id: int) -> HttpResponse:
        return HttpResponse("paid")

    @locked("invoice:{id}", timeout=0)
    def post(self, request: HttpRequest, id: int) -> HttpResponse:
        return HttpResponse("paid")


REQUEST = RequestFactory().get("/")
VIEWS = {
    "function": lambda id: pay(REQUEST, id=id),
    "async": lambda id: asyncio.run(apay(REQUEST, id)),
    "method": lambda id: Pay.as_view()(REQUEST, id=id),
    "bare method": lambda id: Pay.as_view()(RequestFactory().post("/"), id=id),
}
if find_spec("rest_framework"):
    from rest_framework.decorators import api_view
    from rest_framework.views import APIView

    class RestPay(APIView):
        get = Pay.get

    VIEWS["REST framework"] = lambda id: api_view()(pay)(REQUEST, id=id)
    VIEWS["its class"] = lambda id: RestPay.as_view()(REQUEST, id=id)


class TestViews:
    @pytest.mark.parametrize("kind", VIEWS)
    def test_view_runs_under_its_lock_or_is_refused(self, kind: str, held: None) -> None:
        response = VIEWS[kind](42)
        assert response.status_code == (503 if kind == "async" else 409)
        assert (pay.__name__, apay.__name__) == ("pay", "apay"), "tasks and tools go by it"
        assert response["Retry-After"] == "1"
        assert b"Another request holds the lock" in response.content
        assert VIEWS[kind](43).content == b"paid"
        assert names() == ["invoice:42"]

    @pytest.mark.parametrize("kind", VIEWS)
    def test_unavailable_store_is_503(self, kind: str, backend: LockStore) -> None:
        backend.backend.then("acquire", unavailable)
        response = VIEWS[kind](42)
        assert (response.status_code, response["Retry-After"]) == (503, "1")
        assert b"unavailable" in response.content

    def test_time_out_of_another_lock_is_not_a_refusal(self, held: None) -> None:
        @locked("other:{id}")
        def view(request: HttpRequest, id: int) -> HttpResponse:
            with lock(f"invoice:{id}", timeout=0):
                return HttpResponse()

        with pytest.raises(LockTimeout, match="invoice:42"):
            view(REQUEST, 42)
        assert names() == ["invoice:42"]


@pytest.mark.parametrize("on_busy", [None, "raise", "return"])
def test_function_raises_or_returns_while_the_lock_is_held(backend, held, on_busy) -> None:
    @locked("invoice:{pk}", timeout=0, on_busy=on_busy)
    def send(pk: int) -> str:
        return "sent"

    assert send(1) == "sent"
    if on_busy == "return":
        assert send(42) is None
    else:
        with pytest.raises(LockTimeout, match="invoice:42"):
            send(42)
    backend.backend.then("acquire", unavailable)
    with pytest.raises(LockUnavailable):
        send(1)


def numbers() -> Iterator[int]:
    yield 1


async def anumbers() -> Any:
    yield 1


async def later() -> int:
    return 1


class TestWorkAfterTheReturn:
    """What runs when the function has returned would run without the lock."""

    @pytest.mark.parametrize("body", [numbers, anumbers, partial(numbers)])
    def test_generator_function_is_refused_when_it_is_decorated(self, body) -> None:
        with pytest.raises(LockMisuse, match="a generator"):
            locked("numbers")(body)

    def test_refused_response_does_not_end_the_request(self) -> None:
        """Its `close` would: Django closes the connections that the view still uses."""
        ended: list[object] = []

        def note(**signal: object) -> None:
            ended.append(signal)

        request_finished.connect(note)
        with pytest.raises(LockMisuse):
            locked("numbers")(lambda: StreamingHttpResponse([]))()
        request_finished.disconnect(note)
        assert ended == []

    @pytest.mark.parametrize("make", [numbers, anumbers, later, lambda: StreamingHttpResponse([])])
    def test_result_that_is_not_there_yet_is_refused(self, make) -> None:
        with pytest.raises(LockMisuse, match="after the lock is released"):
            locked("numbers")(lambda: make())()
        assert names() == []

        @locked("numbers")
        async def view() -> Any:
            return make()

        with pytest.raises(LockMisuse, match="after the lock is released"):
            asyncio.run(view())


class TestTasks:
    @pytest.fixture
    def celery(self) -> Iterator[Celery]:
        with Celery("test-locked", set_as_current=False) as app:
            yield app

    def test_celery_sends_a_task_again_while_the_lock_is_held(
        self, celery: Celery, backend: LockStore, held: None
    ) -> None:
        @celery.task(shared=False, bind=True, max_retries=2, default_retry_delay=0)
        @locked("invoice:{pk}", timeout=0, on_busy="retry")
        def send(self: Any, pk: int) -> int:
            return self.request.retries

        backend.backend.then("acquire", lambda: None, lambda: backend.break_lock("invoice:42"))
        assert send.apply([42]).get() == 1

    def test_last_try_raises_the_time_out(self, celery: Celery, held: None) -> None:
        @celery.task(shared=False, max_retries=1, default_retry_delay=0)
        @locked("invoice:{pk}", timeout=0, on_busy="retry")
        def send(pk: int) -> str:
            return "sent"

        with pytest.raises(LockTimeout):
            send.apply([42]).get()
        with pytest.raises((LockTimeout, Retry)):
            send(42)
        assert send.apply([1]).get() == "sent"
