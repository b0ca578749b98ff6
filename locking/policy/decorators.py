"""Run views, Celery tasks and other functions under a lock: `@locked("invoice:{pk}")`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial, wraps
from string import Formatter
from typing import Any, Literal, Unpack, get_args

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from locking.exceptions import LockError, LockMisuse, LockTimeout, LockUnavailable, unknown
from locking.handler import locks
from locking.lease import LockOptions
from locking.names import storable
from locking.policy.lock import PolicyLock

LATER = (inspect.isgenerator, inspect.isasyncgen, inspect.isawaitable)
OnBusy = Literal["raise", "return", "retry", 409, 503, None]


def locked(
    template: str,
    *,
    on_busy: OnBusy = None,
    using: str | None = None,
    **options: Unpack[LockOptions],
) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a view, a task or another function: it runs under the lock of this name.

    `template` is formatted with the arguments of the call. using: an alias in LOCKS, by default the
    active backend; the other options are those of a lock. While another caller holds the lock, a
    view responds 409 (default) or 503, both with Retry-After; another function raises LockTimeout
    ("raise", the default), returns None ("return") or is sent again by Celery ("retry"). If the
    store is unavailable, a view responds 503. Under ATOMIC_REQUESTS, give until="commit". Raise
    LockMisuse for a generator and a streaming response: they run when the lock is released.
    """
    if on_busy not in get_args(OnBusy):
        raise LockMisuse(f"Invalid on_busy {on_busy!r}: give one of {get_args(OnBusy)}.")
    PolicyLock("check", **options)  # refuses wrong options now
    try:
        found = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise LockMisuse(f"Invalid lock name {template!r}: {error}.") from error
    if template[:1] in ("", "{"):
        raise LockMisuse(f"Invalid lock name {template!r}: begin with a text, as in 'invoice:'.")
    fields = [field.partition(".")[0].partition("[")[0] for field in found]

    def decorate(body: Callable[..., Any]) -> Any:
        if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
            raise LockMisuse(f"{template!r} cannot guard a generator: acquire the lock inside it.")
        # method_decorator passes a partial of the bound method that wraps the unbound one.
        signature = inspect.signature(body, follow_wrapped=not isinstance(body, partial))
        takes_any = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        for name in fields:
            if not takes_any and name not in signature.parameters:
                problem = unknown("argument", name, signature.parameters)
                raise LockMisuse(f"Invalid lock name {template!r}: {problem}")

        def lock_of(args: Any, kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            try:
                name = storable(template.format_map({**bound.arguments, **kwargs}))
            except (LookupError, AttributeError, ValueError) as error:
                raise LockMisuse(f"Lock name {template!r} cannot be formed: {error!r}.") from error
            return locks[using].lock(name, **options) if using else PolicyLock(name, **options)

        @wraps(body)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            async with AsyncExitStack() as stack:
                try:
                    await stack.enter_async_context(lock_of(args, kwargs))
                except (LockTimeout, LockUnavailable) as error:
                    return _refuse(error, on_busy, args)
                return _completed(await body(*args, **kwargs))

        @wraps(body)
        def run(*args: Any, **kwargs: Any) -> Any:
            with ExitStack() as stack:
                try:
                    stack.enter_context(lock_of(args, kwargs))
                except (LockTimeout, LockUnavailable) as error:
                    return _refuse(error, on_busy, args)
                return _completed(body(*args, **kwargs))

        return run_async if iscoroutinefunction(body) else run

    return decorate


def _completed(result: Any) -> Any:
    """Return what a body returned. Raise LockMisuse if its work is still to be done."""
    is_later = any(is_kind(result) for is_kind in LATER)
    if is_later or (isinstance(result, HttpResponseBase) and result.streaming):
        if is_later:  # a response would tell Django that the request is over
            getattr(result, "close", lambda: None)()
        kind = type(result).__name__
        raise LockMisuse(f"A {kind} does its work after the lock is released: lock inside of it.")
    return result


def _is_request(value: object) -> bool:
    """Return whether it is a request of Django, or of Django REST framework, which wraps one."""
    return isinstance(getattr(value, "_request", value), HttpRequest)


def _refuse(error: LockError, on_busy: OnBusy, args: tuple[Any, ...]) -> HttpResponse | None:
    is_busy = isinstance(error, LockTimeout)
    if on_busy == "return" and is_busy:
        return None
    if on_busy == "retry":
        from celery import current_task

        if current_task:
            raise current_task.retry(exc=error)
    if on_busy is None and any(map(_is_request, args[:2])):
        on_busy = 409
    if not isinstance(on_busy, int):
        raise error
    text = "Another request holds the lock." if is_busy else "The lock service is unavailable."
    headers = {"Retry-After": "1", "Content-Type": "text/plain"}
    return HttpResponse(f"{text} Try again.", status=on_busy if is_busy else 503, headers=headers)
