"""OpenTelemetry spans, on a recorder of its interface."""

from __future__ import annotations

import asyncio
import sys
from collections import namedtuple
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from devservers.faults.waiting import until
from locking import LockLost, LockTimeout, locks
from locking.lease import tracing
from tests.locking.scripted import scripted

with_rows = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

SpanContext = namedtuple("SpanContext", "trace_id span_id is_remote", defaults=[False])


class RecordedSpan:
    """The methods of a span that the library calls."""

    def __init__(self, spans: list[Any], name: str, parent: Any, attributes: dict) -> None:
        self.name, self.attributes, self.links = name, dict(attributes), []
        self.parent = parent
        self._spans, self._is_open = spans, True
        self.context = SpanContext(parent.trace_id if parent else id(self), id(self) + 1)

    def get_span_context(self) -> SpanContext:
        return self.context

    def add_link(self, context: SpanContext) -> None:
        self.links.append(namedtuple("Link", "context")(context))

    def set_attribute(self, name: str, value: object) -> None:
        self.attributes[name] = value

    def is_recording(self) -> bool:
        return self._is_open

    def end(self) -> None:
        assert self._is_open, "ended twice"
        self._is_open = False
        self._spans.append(self)


@pytest.fixture
def finished(monkeypatch, settings) -> Iterator[list[RecordedSpan]]:
    """Return the finished spans."""
    spans: list[RecordedSpan] = []

    class Tracer:
        def start_span(self, name: str, context: Any = None, attributes: Any = ()) -> RecordedSpan:
            return RecordedSpan(spans, name, context, attributes)

    api = ModuleType("opentelemetry.trace")
    api.SpanContext = SpanContext
    api.set_span_in_context = lambda span: span.get_span_context()
    api.get_tracer = lambda name: Tracer()
    package = ModuleType("opentelemetry")
    package.trace = api
    monkeypatch.setitem(sys.modules, "opentelemetry", package)
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", api)
    settings.LOCK_TRACING = True
    tracing.tracer.cache_clear()
    yield spans
    tracing.tracer.cache_clear()


def of(spans: Any, name: str, **attributes: object) -> Any:
    """Return the only span with this name and these attributes."""
    wanted = {f"lock.{key}": value for key, value in attributes.items()}.items()
    (span,) = [
        each for each in spans if each.name == name and wanted <= dict(each.attributes).items()
    ]
    return span


@pytest.mark.parametrize("alias", ["redis", pytest.param("database", marks=with_rows), "process"])
def test_wait_links_to_the_span_of_the_holder(alias, finished, monkeypatch):
    backend, claims = locks[alias], []
    begin = tracing.begin
    monkeypatch.setattr(
        tracing, "begin", lambda alias, claim: (claims.append(claim), begin(alias, claim))
    )

    def second() -> int:
        with backend.lock("report:7", timeout=20) as lease:
            return lease.token

    with ThreadPoolExecutor(2) as pool:
        with backend.lock("report:7") as lease:
            first = lease.token
            waiter = pool.submit(second)
            until(lambda: claims[-1].holder, "the wait")
            short = pool.submit(backend.lock("report:7", timeout=0.2).__enter__)
            assert isinstance(short.exception(20), LockTimeout)
        token = waiter.result(20)
    held = of(finished, "lock hold", token=first, lost=False)
    timed_out = of(finished, "lock wait", outcome="timeout", backend=alias)
    granted = [one for one in finished if dict(one.attributes).get("lock.outcome") == "acquired"]
    links = [[link.context.span_id for link in one.links] for one in (*granted, timed_out)]
    assert links == [[], [held.parent.span_id], [held.parent.span_id]]
    assert of(finished, "lock hold", token=token).parent.span_id == granted[1].context.span_id


def test_span_of_a_lost_lock_says_so(finished):
    lock = locks["redis"].lock("report:7")
    lock.acquire()
    assert locks["redis"].break_lock("report:7")
    with pytest.raises(LockLost):
        lock.release()
    assert len([one for one in finished if one.name == "lock hold"]) == 1


def test_wait_of_a_task_links_to_the_span_of_the_holder(finished):
    async def wait() -> None:
        async with locks["redis"].lock("report:7", timeout=0.2):
            pass

    with locks["redis"].lock("report:7") as lease, pytest.raises(LockTimeout):
        asyncio.run(wait())
    held = of(finished, "lock hold", token=lease.token)
    (link,) = of(finished, "lock wait", outcome="timeout").links
    assert link.context.trace_id == held.context.trace_id


def test_message_is_the_owner_of_its_key(finished):
    backend = scripted()
    lock = backend.lock("a")
    lock.owner = "message"  # as locking.jobs.unique does
    with lock as lease:
        assert lease.owner == "message"
