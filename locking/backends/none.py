"""No lock at all: the control (REQUIREMENTS L1). Everybody is granted everything at once."""

from django.utils.translation import gettext_noop

from locking.backends.base import Backend, Capabilities, Claim, Grant, Held
from locking.backends.clock_tokens import clock_token


class NoneBackend(Backend):
    """Grants at once, to everybody. What a load test oversells with."""

    capabilities = Capabilities(
        summary=gettext_noop("No lock: the control that must oversell."),
        exclusion="none",
    )

    def acquire(self, claim: Claim, timeout: float) -> Grant:
        """Granted."""
        return Grant(clock_token(), float("inf"))

    def release(self, claim: Claim, token: int) -> None:
        """There is nothing to free."""

    def extend(self, claim: Claim, token: int, ttl: float) -> float:
        """There is nothing to lose."""
        return float("inf")

    def inspect(self) -> list[Held]:
        """Nobody ever holds anything."""
        return []

    def probe(self) -> None:
        """There is nothing to be down."""
