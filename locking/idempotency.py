"""One effect and one answer for each key, however often a request is sent (REQUIREMENTS U2).

    @idempotent                                    # key: field idempotency_key, or Idempotency-Key
    def transfer(request, *, attempt):
        with transaction.atomic():
            ...                                    # the effect
            return attempt.keep(JsonResponse(...)) # its answer, in the same transaction

The row is the truth: it is written in the transaction of the effect, so a crash leaves both or
neither, and whoever sends the key again gets the answer byte for byte, or finishes the work. A lock
on the key only tells that a first sender is still at it; it ends with its process, and nothing is
done twice without it.

Only answers with an effect are kept. A refusal (400 and above, or an exception) changed nothing, so
the same key may be sent again.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, wraps
from types import TracebackType
from typing import Any, Self, TypeVar

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from locking import metrics
from locking.exceptions import (
    IdempotencyError,
    KeyInFlight,
    KeyReused,
    KeyUnusable,
    LockError,
    LockUnavailable,
)
from locking.failpoints import reach
from locking.handler import locks
from locking.lease import Lock
from locking.models import IdempotencyKey
from locking.policy import BESIDE

logger = logging.getLogger("locking")

KEPT_FOR = timedelta(hours=24)
"""How long an answer is replayed at least; `prune` deletes it afterwards."""
PRUNED_AT_ONCE = 1000
WAIT = 1.0
"""Seconds for which a second sender waits for the first one's answer before it is told 409."""
MAX_KEY = 255
MAX_USER = 64
REFUSED = 400
"""Answers from this status on are refusals: they changed nothing and are not kept."""
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data")
FIELD = "idempotency_key"
NOT_ASKED = frozenset({FIELD, "csrfmiddlewaretoken"})
"""Fields that say nothing of what a form asks for."""
View = Callable[..., HttpResponse]
Said = TypeVar("Said", "Answer", HttpResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was said; services that know no HTTP use the body alone."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, response: HttpResponse) -> Answer:
        """What a view says: middleware adds its own headers, and cookies, to a replay as well."""
        headers = dict(response.items())
        return cls(body=response.content, status=response.status_code, headers=headers)

    def response(self) -> HttpResponse:
        """The same again."""
        return HttpResponse(self.body, status=self.status, headers=self.headers)


class Attempt:
    """One send of a key, for services; `idempotent` is the same for views.

        with Attempt(user=user.pk, key=key, request=b"pay 42") as attempt:
            if attempt.answer is None:
                with transaction.atomic():
                    ...
                    attempt.keep(Answer(body=b"paid"))
        return attempt.answer

    `request` is what the key stands for. Waits up to `wait` seconds for another sender of the key.
    Raises KeyUnusable, KeyInFlight and KeyReused. An error of the block is dropped when somebody
    else, or a COMMIT whose reply was lost, has the answer: that is then in `answer`.
    """

    def __init__(
        self, *, user: object, key: str, request: bytes, wait: float | None = None
    ) -> None:
        if not is_key(key):
            raise KeyUnusable
        self.user = str(user)
        self.digest = _digest(self.user.encode(), key.encode())
        self.fingerprint = _digest(request)
        self.wait = WAIT if wait is None else wait
        self.answer: Answer | None = None
        """The answer to give; None when the work is still to be done."""
        self.is_replay = False
        """Whether it was another send that did the work."""
        self._lock: Lock | None = None

    def __enter__(self) -> Self:
        # By name, not by the policy: what guards the stock may be switched off, forms go on.
        lock = locks[settings.LOCK_POLICY["BACKEND"]].lock(BESIDE + self.digest)
        try:
            if not lock.acquire(timeout=self.wait):
                metrics.KEYS.labels("in_flight").inc()
                raise KeyInFlight
            self._lock = lock
        except LockUnavailable:
            logger.warning("nobody tells which keys are in flight", exc_info=True)
        try:
            if not self.look():
                metrics.KEYS.labels("first").inc()
            reach("idempotency.looked")
        except BaseException:
            self._leave()
            raise
        return self

    def look(self) -> bool:
        """Whether the answer is there, which is then in `answer`. Raises KeyReused."""
        row = IdempotencyKey.objects.filter(pk=self.digest).first()
        if row is None:
            return False
        if row.fingerprint != self.fingerprint:
            metrics.KEYS.labels("reused").inc()
            raise KeyReused
        self.answer = Answer(body=bytes(row.body), status=row.status, headers=row.headers)
        self.is_replay = True
        metrics.KEYS.labels("replayed").inc()
        return True

    def row(self, answer: Answer | HttpResponse) -> dict[str, Any]:
        """The values of the IdempotencyKey that holds the answer, for hand-written transactions."""
        self.answer = answer if isinstance(answer, Answer) else Answer.of(answer)
        return {
            "digest": self.digest,
            "user": self.user[:MAX_USER],
            "fingerprint": self.fingerprint,
            "status": self.answer.status,
            "headers": self.answer.headers,
            "body": self.answer.body,
            "created_at": timezone.now(),
        }

    def keep(self, answer: Said) -> Said:
        """Write the answer, inside the transaction that has the effect, and give it back.

        Raises TransactionManagementError outside of one: a crash could then part the two.
        """
        using = router.db_for_write(IdempotencyKey)
        if not transaction.get_connection(using).in_atomic_block:
            raise TransactionManagementError("An answer is kept in its effect's transaction.")
        IdempotencyKey.objects.create(**self.row(answer))
        return answer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if self.is_replay or not isinstance(error, Exception) or not self._has_answer():
                return False
            logger.warning("the answer to a key stands in spite of %r", error)
            return True
        finally:
            self._leave()

    def _has_answer(self) -> bool:
        try:
            return self.look()
        except DatabaseError:
            return False

    def _leave(self) -> None:
        if self._lock is not None:
            with suppress(LockError):  # the row is the truth, whoever holds the lock by now
                self._lock.release()


def idempotent(view: View | None = None, *, wait: float | None = None) -> Any:
    """Answer each key once: a decorator for views that get `attempt` and keep what they say.

    The key is the customer's own, so strangers get 403. Without a usable key 400, with the key of
    another request 422; 409 with Retry-After while the first send is still at work after `wait`
    seconds.
    """
    if view is None:
        return partial(idempotent, wait=wait)
    do = view

    @wraps(do)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.pk is None:
            raise PermissionDenied
        try:
            with Attempt(
                user=request.user.pk, key=key_of(request), request=content_of(request), wait=wait
            ) as attempt:
                if attempt.answer is None:
                    response = do(request, *args, attempt=attempt, **kwargs)
                    if response.status_code >= REFUSED:
                        attempt.look()  # perhaps another send was faster, and it was refused so
                    elif attempt.answer is None:
                        raise RuntimeError(f"{do.__qualname__} did not keep its answer")
        except IdempotencyError as error:
            refusal = HttpResponse(str(error), status=error.status, content_type="text/plain")
            if isinstance(error, KeyInFlight):
                refusal["Retry-After"] = str(KeyInFlight.retry_after)
            return refusal
        if attempt.is_replay:
            assert attempt.answer is not None
            return attempt.answer.response()
        return response

    return answered


def is_key(text: str) -> bool:
    """Whether it can be a key: up to 255 characters, not blank, none of them a control."""
    is_clean = not any(unicodedata.category(sign).startswith("C") for sign in text)
    return bool(text.strip()) and len(text) <= MAX_KEY and is_clean


def key_of(request: HttpRequest) -> str:
    """The one key in the form or the Idempotency-Key header. Raises KeyUnusable."""
    sent = {*request.POST.getlist(FIELD), request.headers.get("Idempotency-Key", "")} - {""}
    if len(sent) != 1:
        raise KeyUnusable
    return str(sent.pop())


def content_of(request: HttpRequest) -> bytes:
    """What a request asks for: the same in every send of one form, or of one body."""
    form: list[object] = [request.method, request.get_full_path()]
    if request.content_type not in FORM_TYPES:
        return repr(form).encode() + request.body
    form += sorted((name, values) for name, values in request.POST.lists() if name not in NOT_ASKED)
    for name, files in sorted(request.FILES.lists()):
        for file in files:
            form.append((name, file.name, _digest(*file.chunks())))
            file.seek(0)
    return repr(form).encode()


def prune() -> int:
    """Delete answers older than KEPT_FOR; return how many."""
    old = IdempotencyKey.objects.filter(created_at__lt=timezone.now() - KEPT_FOR)
    deleted = 0
    # By the thousand: a long transaction would stand in the way of new keys.
    while some := list(old.values_list("pk", flat=True)[:PRUNED_AT_ONCE]):
        deleted += IdempotencyKey.objects.filter(pk__in=some).delete()[0]
    return deleted


def _digest(*parts: bytes) -> str:
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.hexdigest()
