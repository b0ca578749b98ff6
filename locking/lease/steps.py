"""One body for threads and asyncio tasks.

A body is a generator. It yields each call that waits for a store, and gets the call's result or
exception. A thread makes the calls itself; a task awaits them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")


class Call(NamedTuple):
    """A call of a blocking function, and the same for a task."""

    call: Callable[[], Any]
    acall: Callable[[], Awaitable[Any]]


Steps: TypeAlias = Generator[Call, Any, T]


def run(steps: Steps[T]) -> T:
    """Return the result of a body, whose calls block this thread."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.call()
            except BaseException as error:  # noqa: BLE001 - raised again in the body
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps[T]) -> T:
    """Return the result of a body, whose calls this task awaits."""
    try:
        step = next(steps)
        while True:
            try:
                result = await step.acall()
            except BaseException as error:  # noqa: BLE001 - raised again in the body
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
