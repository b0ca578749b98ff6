"""One body for threads and asyncio tasks.

A body is a generator. It yields each call that waits for a store, and gets the call's result or
exception. A thread makes the calls itself; a task awaits them. Calls are plain tuples, since every
acquire and release makes some.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")


Call: TypeAlias = tuple[Callable[..., Any], Callable[..., Awaitable[Any]], tuple[Any, ...]]
"""A blocking function, the same for a task, and the arguments of both."""
Steps: TypeAlias = Generator[Call, Any, T]


def run(steps: Steps[T]) -> T:
    """Return the result of a body, whose calls block this thread."""
    try:
        call, _, args = next(steps)
        while True:
            try:
                result = call(*args)
            except BaseException as error:  # noqa: BLE001 - raised again in the body
                call, _, args = steps.throw(error)
            else:
                call, _, args = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def arun(steps: Steps[T]) -> T:
    """Return the result of a body, whose calls this task awaits."""
    try:
        _, acall, args = next(steps)
        while True:
            try:
                result = await acall(*args)
            except BaseException as error:  # noqa: BLE001 - raised again in the body
                _, acall, args = steps.throw(error)
            else:
                _, acall, args = steps.send(result)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
