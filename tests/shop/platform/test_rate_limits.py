"""Rate limits that remember a client's first request in the process."""

import secrets
from contextlib import suppress

import pytest

from shop.errors import TooMany
from shop.platform import rate_limits


@pytest.mark.parametrize("uptime", [5.0, 5_000_000.0])
def test_repeated_requests_are_limited_from_the_start_of_the_machine(uptime, monkeypatch) -> None:
    """The window is longer than the time since the machine started."""
    monkeypatch.setattr(rate_limits.time, "monotonic", lambda: uptime)
    client = secrets.token_hex(8)
    rate_limits.count_repeated("2/hour", client)
    rate_limits.count_repeated("2/hour", client)
    with pytest.raises(TooMany):
        rate_limits.count_repeated("2/hour", client)


def test_count_is_taken_back_above_the_limit() -> None:
    """A correct password counts for nothing, no matter how many wrong ones came with it."""
    client = secrets.token_hex(8)
    for _ in range(4):
        with suppress(TooMany):
            rate_limits.count("2/hour", client)
    rate_limits.count("2/hour", client, cost=-1)
    with pytest.raises(TooMany):
        rate_limits.count("2/hour", client, cost=0)
