"""Faults of a store, as the author of a backend supplies them to the contract."""

from collections.abc import Mapping
from typing import Any, ClassVar

from locking.lease import Lease, LockStore


class StoreDriver:
    """One store under test. A subclass overrides the hooks that its store can have.

    The contract leaves out the tests whose hook is missing, and reports which declared
    capabilities it could not prove.
    """

    location: str | list[str] = ""
    """Where the backend finds the store; read again after `promote_replica`."""
    far: str | list[str] = ""
    """The same store through a proxy, which `lose_reply`, `cut` and `hold` affect."""
    options: Mapping[str, Any] = {}
    """OPTIONS of the backend, such as short timeouts."""

    PROVES: ClassVar[Mapping[str, str]] = {
        "fencing": "restart",
        "tokens_outlive_failover": "promote_replica",
        "survives_minority": "stop_minority",
        "session_bound": "end_session",
        "wakes_waiters": "requests",
    }
    """The hooks without which a capability is not proved."""

    @classmethod
    def has(cls, hook: str) -> bool:
        """Return whether this class overrides a hook."""
        return getattr(cls, hook) is not getattr(StoreDriver, hook)

    def recover(self) -> None:
        """Undo all faults: after each test that causes one, and in some before their end."""

    def close(self) -> None:
        """Stop the store after the tests of a class, each of which has a driver of its own."""

    def requests(self) -> int:
        """Return the number of requests that clients have sent, without signs of life."""
        raise NotImplementedError

    def pause(self) -> None:
        """Let the store keep its connections and, once this returns, reply to nothing."""
        raise NotImplementedError

    def restart(self) -> bool:
        """Kill the store and start it; return whether it still knows the held locks."""
        raise NotImplementedError

    def shift_clock(self, seconds: float) -> None:
        """Set the store's clock this far ahead of the real time, or back."""
        raise NotImplementedError

    def cut_replication(self) -> None:
        """Let no later write reach the replica; called only if there is `promote_replica`."""

    def promote_replica(self) -> bool:
        """Replace the store by its replica; return whether this one knows the held locks."""
        raise NotImplementedError

    def stop_minority(self) -> None:
        """Stop as many nodes as the store can do without."""
        raise NotImplementedError

    def lose_reply(self) -> None:
        """Let the next reply to `far` be lost, with its connection."""
        raise NotImplementedError

    def cut(self, *, refuse: bool) -> None:
        """Reset the connections of `far`; `refuse` new ones until `recover`."""
        raise NotImplementedError

    def hold(self) -> None:
        """Hold what clients send through `far`; it arrives after `recover`."""
        raise NotImplementedError

    def end_session(self, store: LockStore, lease: Lease) -> None:
        """Let the store end the session of a holder, which is in this process."""
        raise NotImplementedError
