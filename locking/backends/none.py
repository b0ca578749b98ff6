"""No lock at all: the control. Every claim is granted at once."""

from django.utils.translation import gettext_noop

from locking.backends.base import Backend
from locking.backends.clock_tokens import clock_token
from locking.claims import Capabilities, Claim, Grant, Held


class NoneBackend(Backend):
    """Grants every claim at once, for comparison with real locks."""

    capabilities = Capabilities(
        summary=gettext_noop("No lock: excludes nothing; only for comparison."),
        exclusion="none",
    )

    def acquire(self, claim: Claim, timeout: float) -> Grant:
        """Return a grant."""
        return Grant(clock_token(), float("inf"))

    def release(self, claim: Claim, token: int) -> None:
        """Do nothing."""

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """Return infinity."""
        return float("inf")

    def inspect(self) -> list[Held]:
        """Return no locks."""
        return []

    def probe(self) -> None:
        """Do nothing: there is no store."""
