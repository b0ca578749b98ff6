"""Idempotent views: the key comes as a form field or as a header.

@idempotent                                     # idempotency_key, or Idempotency-Key
def transfer(request, *, attempt):
    with transaction.atomic():
        ...                                     # the effect
        return attempt.store(JsonResponse(...)) # its response, in the same transaction
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse

from locking.exceptions import IdempotencyError, KeyInFlight, KeyUnusable
from locking.idempotency import Attempt, digest_of
from locking.names import check_timeout

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELD = "idempotency_key"
IGNORED_FIELDS = frozenset({FIELD, "csrfmiddlewaretoken"})
"""Form fields that do not describe the requested effect."""

View = Callable[..., Any]


def idempotent(view: View | None = None, *, wait: float | None = None) -> Any:
    """Decorate a view that gets `attempt` and stores its response: each key has one effect.

    A key belongs to its user, so anonymous requests get 403. The response is 400 without exactly
    one valid key, 422 if the key was used for another request, and 409 with Retry-After if an
    earlier request is still in progress after `wait` seconds. Responses from 400 on are not stored.
    A replayed response carries `Idempotent-Replayed: true`. An async view does the effect and
    stores the response in one call of `sync_to_async`, because both need one transaction.
    """
    check_timeout(wait)
    if view is None:
        return partial(idempotent, wait=wait)

    # Frameworks that read arguments from the signature must not expect `attempt` from the client.
    signature = inspect.signature(view)
    known = [one for one in signature.parameters.values() if one.name != "attempt"]
    visible = signature.replace(parameters=known)

    if inspect.iscoroutinefunction(view):

        @wraps(view)
        async def respond_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            user = await request.auser()
            try:
                async with await sync_to_async(_attempt)(request, user, wait) as attempt:
                    if attempt.response is None:
                        response = await view(request, *args, attempt=attempt, **kwargs)
                        await sync_to_async(_check)(view, attempt, response)
            except IdempotencyError as error:
                return _refusal(error)
            return _replay(attempt) or response

        respond_async.__signature__ = visible  # type: ignore[attr-defined]
        return respond_async

    @wraps(view)
    def respond(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            with _attempt(request, request.user, wait) as attempt:
                if attempt.response is None:
                    with _atomic_requests(view):
                        response = view(request, *args, attempt=attempt, **kwargs)
                    _check(view, attempt, response)
        except IdempotencyError as error:
            return _refusal(error)
        return _replay(attempt) or response

    respond.__signature__ = visible  # type: ignore[attr-defined]
    # Not inside ATOMIC_REQUESTS: the key must stay locked until the transaction is committed.
    respond._non_atomic_requests = set(settings.DATABASES)  # type: ignore[attr-defined]
    return respond


@contextmanager
def _atomic_requests(view: View) -> Iterator[None]:
    """Open the transactions in which Django would run the view; see ATOMIC_REQUESTS."""
    excluded: set[str] = getattr(view, "_non_atomic_requests", set())
    with ExitStack() as stack:
        for alias, database in connections.settings.items():
            if database["ATOMIC_REQUESTS"] and alias not in excluded:
                stack.enter_context(transaction.atomic(using=alias))
        yield


def _attempt(request: HttpRequest, user: Any, wait: float | None) -> Attempt:
    if user.pk is None:
        raise PermissionDenied
    content = content_of(request)
    attempt = Attempt(user=user.pk, key=key_of(request), request=content, wait=wait)
    attempt._http_request = request
    return attempt


def _check(view: View, attempt: Attempt, response: HttpResponse) -> None:
    """Raise RuntimeError if the view succeeded without storing its response."""
    is_stored = attempt.response is not None and attempt.response.status == response.status_code
    if response.status_code >= 400 and not is_stored:
        attempt.load()  # refused, perhaps because another request was faster
    elif attempt.response is None:
        raise RuntimeError(f"{view.__qualname__} did not store its response")


def _refusal(error: IdempotencyError) -> HttpResponse:
    refusal = HttpResponse(str(error), status=error.status, content_type="text/plain")
    if isinstance(error, KeyInFlight):
        refusal["Retry-After"] = str(KeyInFlight.retry_after)
    return refusal


def _replay(attempt: Attempt) -> HttpResponse | None:
    """Return the stored response of another request, marked as a replay, or None."""
    if not attempt.is_replay:
        return None
    assert attempt.response is not None
    response = attempt.response.to_http()
    response["Idempotent-Replayed"] = "true"
    return response


def key_of(request: HttpRequest) -> str:
    """Return the only key in the form or the Idempotency-Key header. Raise KeyUnusable."""
    keys = {*request.POST.getlist(FIELD), request.headers.get("Idempotency-Key", "")} - {""}
    if len(keys) != 1:
        raise KeyUnusable
    return str(keys.pop())


def content_of(request: HttpRequest) -> bytes:
    """Return a description of the requested effect, equal for every send of one form or body."""
    form: list[object] = [request.method, request.get_full_path()]
    if request.method != "POST" or request.content_type not in FORM_TYPES:
        # Django reads only the form of a POST.
        return repr(form).encode() + request.body
    fields = request.POST.lists()
    form += sorted((name, values) for name, values in fields if name not in IGNORED_FIELDS)
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            form.append((name, file.name, digest_of(*file.chunks())))
            file.seek(0)
    return repr(form).encode()
