"""Lost updates in handwritten histories."""

from __future__ import annotations

from typing import Any

from loadtest.kernel.lost_updates import lost_updates


def event(at: int, thread: int, do: str, quantity: int | None, actor: str = "p") -> dict[str, Any]:
    return {"t": at, "actor": actor, "thread": thread, "do": do, "type": "ok", "quantity": quantity}


def lost(history: list[dict[str, Any]]) -> dict[str, Any] | None:
    return lost_updates(history, units=3, counted=2)


def test_two_reads_before_either_write() -> None:
    history = [
        event(1, 1, "read", 37),
        event(2, 2, "read", 37),
        event(3, 1, "write", 36),
        event(4, 2, "write", 36),
        event(5, 1, "read", 36),
        event(6, 1, "write", 35),
    ]
    found = lost(history)
    assert found is not None
    assert found["times"] == 1
    story = [(e["t"], e["actor"], e["do"], e["quantity"]) for e in found["events"]]
    assert story == [
        (1, "buyer A", "read", 37),
        (2, "buyer B", "read", 37),
        (3, "buyer A", "write", 36),
        (4, "buyer B", "write", 36),
    ]


def test_write_over_a_quantity_that_was_not_read_counts_even_if_none_read_the_same() -> None:
    """And a read whose value was committed before its write is recorded does not."""
    history = [
        event(1, 1, "read", 9),
        event(2, 2, "read", 9),
        event(3, 1, "write", 8),
        event(4, 2, "write", 8),
        event(5, 3, "read", 8),
        event(6, 1, "read", 8),
        event(7, 1, "write", 7),
        event(8, 2, "read", 6),
        event(9, 4, "read", 7),
        event(10, 4, "write", 6),
        event(11, 2, "write", 5),
        event(12, 3, "write", 7),
    ]
    found = lost(history)
    assert found is not None
    assert found["times"] == 2  # at 4 and at 12


def test_threads_of_different_processes_may_have_the_same_number() -> None:
    history = [
        event(1, 1, "read", 5, "p"),
        event(2, 1, "read", 5, "q"),
        event(3, 1, "write", 4, "p"),
        event(4, 1, "write", 4, "q"),
    ]
    assert lost(history) is not None


def test_writes_that_follow_one_another_are_not_lost() -> None:
    """Also a group of three units, and a write that is recorded after the next read."""
    history = [
        event(1, 1, "read", 9),
        event(2, 1, "write", 6),
        event(3, 2, "read", 5),
        event(4, 1, "write", 5),
        event(5, 2, "write", 4),
    ]
    history.insert(2, event(2, 1, "read", 6))
    assert lost(history) is None


def test_sales_that_read_nothing_have_no_lost_update() -> None:
    """The conditional strategy neither reads nor computes."""
    history = [event(1, 1, "read", None), event(2, 1, "write", None), event(3, 2, "write", None)]
    assert lost(history) is None
    assert lost([]) is None
