"""Idempotent views: the key comes as a form field or as a header.

@idempotent                                     # idempotency_key, or Idempotency-Key
def transfer(request, *, attempt):
    with transaction.atomic():
        ...                                     # the effect
        return attempt.store(JsonResponse(...)) # its response, in the same transaction
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from locking.exceptions import IdempotencyError, KeyInFlight, KeyUnusable
from locking.idempotency import Attempt, digest_of

FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELD = "idempotency_key"
IGNORED_FIELDS = frozenset({FIELD, "csrfmiddlewaretoken"})
"""Form fields that do not describe the requested effect."""

View = Callable[..., HttpResponse]


def idempotent(view: View | None = None, *, wait: float | None = None) -> Any:
    """Decorate a view that gets `attempt` and stores its response: each key has one effect.

    A key belongs to its user, so anonymous requests get 403. The response is 400 without exactly
    one valid key, 422 if the key was used for another request, and 409 with Retry-After if an
    earlier request is still in progress after `wait` seconds. Responses from 400 on are not stored.
    """
    if view is None:
        return partial(idempotent, wait=wait)

    @wraps(view)
    def idempotent_view(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.pk is None:
            raise PermissionDenied
        try:
            with Attempt(
                user=request.user.pk, key=key_of(request), request=content_of(request), wait=wait
            ) as attempt:
                if attempt.response is None:
                    response = view(request, *args, attempt=attempt, **kwargs)
                    if response.status_code >= 400:
                        attempt.load()  # refused, perhaps because another request was faster
                    elif attempt.response is None:
                        raise RuntimeError(f"{view.__qualname__} did not store its response")
        except IdempotencyError as error:
            refusal = HttpResponse(str(error), status=error.status, content_type="text/plain")
            if isinstance(error, KeyInFlight):
                refusal["Retry-After"] = str(KeyInFlight.retry_after)
            return refusal
        if attempt.is_replay:
            assert attempt.response is not None
            return attempt.response.to_http()
        return response

    return idempotent_view


def key_of(request: HttpRequest) -> str:
    """Return the only key in the form or the Idempotency-Key header. Raise KeyUnusable."""
    keys = {*request.POST.getlist(FIELD), request.headers.get("Idempotency-Key", "")} - {""}
    if len(keys) != 1:
        raise KeyUnusable
    return str(keys.pop())


def content_of(request: HttpRequest) -> bytes:
    """Return a description of the requested effect, equal for every send of one form or body."""
    form: list[object] = [request.method, request.get_full_path()]
    if request.content_type not in FORM_TYPES:
        return repr(form).encode() + request.body
    fields = request.POST.lists()
    form += sorted((name, values) for name, values in fields if name not in IGNORED_FIELDS)
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            form.append((name, file.name, digest_of(*file.chunks())))
            file.seek(0)
    return repr(form).encode()
