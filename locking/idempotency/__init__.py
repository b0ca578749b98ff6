"""One effect and one response for each idempotency key.

    with Attempt(user=user.pk, key=key, request=b"pay 42") as attempt:
        if attempt.response is None:
            with transaction.atomic():
                ...                                            # the effect
                attempt.store(StoredResponse(body=b"paid"))    # in the same transaction
    return attempt.response

`idempotent` of `locking.idempotency.views` does the same for views. The row of the key is written
in the transaction of the effect, so a crash leaves both or neither, and a later request with the
key gets the stored response byte for byte or does the work. A lock on the key only reveals that an
earlier request is still in progress; it ends with its process, and the effect is not doubled
without it.

Only responses of requests that had an effect are stored. A refused request changed nothing, so its
key may be sent again.
"""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self, TypeVar

from asgiref.sync import sync_to_async
from django.db import DatabaseError, router, transaction
from django.db.models import QuerySet
from django.db.transaction import TransactionManagementError
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from locking import metrics
from locking.conf import policy_settings
from locking.exceptions import KeyInFlight, KeyReused, KeyUnusable, LockError, LockUnavailable
from locking.failpoints import reach
from locking.handler import locks
from locking.lease import Lock
from locking.models import IdempotencyKey
from locking.names import IDEMPOTENCY_PREFIX, ReservedName

logger = logging.getLogger("locking")

KEPT_FOR = timedelta(hours=24)
"""How long a response is replayed at least; `prune` deletes it afterwards."""
PRUNE_BATCH = 1000
WAIT = 1.0
"""Seconds that a request waits for an earlier one with the same key before KeyInFlight."""
MAX_KEY_LENGTH = 255
MAX_USER_LENGTH = 64

R = TypeVar("R", "StoredResponse", HttpResponse)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResponse:
    """The response of an effect; services without HTTP use the body alone."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)

    def to_http(self) -> HttpResponse:
        """Return an equal HttpResponse."""
        return HttpResponse(self.body, status=self.status, headers=self.headers)


class Attempt:
    """One request with an idempotency key, as a context manager.

    `request` describes the requested effect. Entering waits up to `wait` seconds (default WAIT)
    for an earlier request with the key and raises KeyUnusable, KeyInFlight or KeyReused. An
    exception of the block is suppressed if a response is stored all the same, by another request
    or by a COMMIT whose reply was lost; `response` then holds it.
    """

    def __init__(
        self, *, user: object, key: str, request: bytes, wait: float | None = None
    ) -> None:
        if not is_key(key):
            raise KeyUnusable
        self.user = str(user)
        self.digest = digest_of(self.user.encode(), key.encode())
        self.fingerprint = digest_of(request)
        self.wait = WAIT if wait is None else wait
        self.response: StoredResponse | None = None
        """The response to return; None while the effect is still to be done."""
        self.is_replay = False
        """True if another request did the work."""
        self._lock: Lock | None = None
        self._http_request: Any = None

    @property
    def lock_name(self) -> ReservedName:
        """The name of the lock that is held while a request with the key is in flight."""
        return ReservedName(IDEMPOTENCY_PREFIX + self.digest)

    def __enter__(self) -> Self:
        # The settings' backend, not the policy's: that may be switched off for a demonstration.
        lock = locks[policy_settings()["BACKEND"]].lock(self.lock_name)
        try:
            if not lock.acquire(timeout=self.wait):
                metrics.KEYS.labels("in_flight").inc()
                raise KeyInFlight
            self._lock = lock
        except LockUnavailable:
            logger.warning("Keys in flight are not detected: lock unavailable", exc_info=True)
        try:
            if not self.load():
                metrics.KEYS.labels("first").inc()
            reach("idempotency.loaded")
        except BaseException:
            self._release()
            raise
        return self

    def load(self) -> bool:
        """Return True if a response is stored, and set `response` to it. Raise KeyReused."""
        row = _primary().filter(pk=self.digest).first()  # a replica may not have it yet
        if row is None:
            return False
        if row.fingerprint != self.fingerprint:
            metrics.KEYS.labels("reused").inc()
            raise KeyReused
        self.response = StoredResponse(body=bytes(row.body), status=row.status, headers=row.headers)
        self.is_replay = True
        metrics.KEYS.labels("replayed").inc()
        return True

    def row(self, response: StoredResponse | HttpResponse) -> dict[str, Any]:
        """Return the columns of the IdempotencyKey, for a caller that inserts it itself."""
        if isinstance(response, HttpResponseBase):
            if response.streaming:
                raise TypeError("A streaming response cannot be stored: give its whole body.")
            self._render(response)
            # Cookies are not among the items. Middleware adds its headers to replays too.
            headers, status = dict(response.items()), response.status_code
            response = StoredResponse(body=response.content, status=status, headers=headers)
        self.response = response
        return {
            "digest": self.digest,
            "user": self.user[:MAX_USER_LENGTH],
            "fingerprint": self.fingerprint,
            "status": response.status,
            "headers": response.headers,
            "body": response.body,
            "created_at": timezone.now(),
        }

    def _render(self, response: Any) -> None:
        """Render a response that Django or REST framework would render after the view."""
        if getattr(response, "is_rendered", True):
            return
        request = self._http_request
        if hasattr(request, "accepted_renderer"):  # of REST framework, which tells the response
            response.accepted_renderer = request.accepted_renderer
            response.accepted_media_type = request.accepted_media_type
            context = {**request.parser_context, "request": request, "response": response}
            response.renderer_context = context
        response.render()

    def store(self, response: R) -> R:
        """Write the response inside the transaction of the effect, and return it.

        Raise TransactionManagementError outside of a transaction: a crash could separate the two.
        """
        using = router.db_for_write(IdempotencyKey)
        if not transaction.get_connection(using).in_atomic_block:
            raise TransactionManagementError("Store the response in the effect's transaction.")
        IdempotencyKey.objects.create(**self.row(response))
        return response

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        try:
            if isinstance(error, Exception) and not self.is_replay:
                with suppress(DatabaseError):
                    if self.load():
                        logger.warning("Returning the stored response of a key after %r", error)
                        return True
            return False
        finally:
            self._release()

    async def __aenter__(self) -> Self:
        await sync_to_async(self.__enter__)()
        return self

    async def __aexit__(self, *raised: Any) -> bool:
        return await sync_to_async(self.__exit__)(*raised)

    def _release(self) -> None:
        if self._lock is not None:
            with suppress(LockError):  # the row decides, even if the lease was lost
                self._lock.release()


def _primary() -> QuerySet[IdempotencyKey]:
    """Return the rows in the database that is written."""
    return IdempotencyKey.objects.using(router.db_for_write(IdempotencyKey))


def is_key(text: str) -> bool:
    """Return True for up to 255 characters that are not blank and contain no control character.

    Django decodes every invalid byte of a form as U+FFFD, so different keys would become equal.
    """
    signs = "" if text.isprintable() else text  # printable text has no control character
    is_clean = "\ufffd" not in text and all(unicodedata.category(one)[0] != "C" for one in signs)
    return bool(text.strip()) and len(text) <= MAX_KEY_LENGTH and is_clean


def prune() -> int:
    """Delete responses older than KEPT_FOR; return their number."""
    rows = _primary()  # a replica would name the deleted rows again
    old = rows.filter(created_at__lt=timezone.now() - KEPT_FOR)
    deleted = 0
    # In batches: one long transaction would block the insertion of new keys.
    while batch := list(old.values_list("pk", flat=True)[:PRUNE_BATCH]):
        deleted += rows.filter(pk__in=batch).delete()[0]
    return deleted


def digest_of(*parts: bytes) -> str:
    """Return the SHA-256 of the parts in hexadecimal; a different division changes it."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
