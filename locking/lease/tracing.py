"""OpenTelemetry spans of waits and holds, if LOCK_TRACING is True (extra `opentelemetry`).

The owner's name in the store carries the trace context of its wait. A later caller's wait therefore
links to the trace of the holder that it waited for, also across machines.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.conf import settings

if TYPE_CHECKING:
    from locking.claims import Claim

MAX_OWNER = 150
"""Longest owner, in characters, that every store can keep."""

_CONTEXT = re.compile(r"@([0-9a-f]{32})-([0-9a-f]{16})$")


@lru_cache(1)
def tracer() -> Any:
    """Return the tracer; None if LOCK_TRACING is not True."""
    if not getattr(settings, "LOCK_TRACING", False):
        return None
    from opentelemetry import trace

    return trace.get_tracer("locking")


class LockTrace:
    """The span of a claim's wait, then that of its hold, which is its child."""

    def __init__(self, tracer: Any, alias: str, claim: Claim) -> None:
        self._tracer = tracer
        self._names = {"lock.name": claim.name, "lock.backend": alias}
        self._span = tracer.start_span("lock wait", attributes=self._names)
        context = self._span.get_span_context()
        owner = f"{claim.owner}@{context.trace_id:032x}-{context.span_id:016x}"
        if len(owner) <= MAX_OWNER:
            claim.owner = owner

    def waited(self, claim: Claim, outcome: str) -> None:
        """End the wait, linked to the last holder that the store has named."""
        from opentelemetry import trace

        found = _CONTEXT.search(claim.holder.owner) if claim.holder else None
        if found:
            ids = (int(part, 16) for part in found.groups())
            self._span.add_link(trace.SpanContext(*ids, is_remote=True))
        self._span.set_attribute("lock.outcome", outcome)
        self._span.end()
        if outcome == "acquired":
            wait = trace.set_span_in_context(self._span)
            attributes = {**self._names, "lock.token": claim.token}
            self._span = self._tracer.start_span("lock hold", wait, attributes=attributes)

    def ended(self, *, lost: bool) -> None:
        """End the hold; the first end counts."""
        if self._span.is_recording():
            self._span.set_attribute("lock.lost", lost)
            self._span.end()


def begin(alias: str, claim: Claim) -> None:
    """Start the span of the claim's wait, and name its context in the owner."""
    if (found := tracer()) is not None:
        claim.trace = LockTrace(found, alias, claim)
