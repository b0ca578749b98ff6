"""Reduce the faults of a failing plan by delta debugging (Zeller and Hildebrandt, 2002)."""

from collections.abc import Callable, Sequence

Fails = Callable[[Sequence[int]], int]
"""Return in how many of some runs with these faults the plan fails."""


def reduce(count: int, fails: Fails, most: int = 40) -> list[int]:
    """Return the numbers of the faults with which the plan still fails; none can be left out.

    A race may pass although its cause is there, so `fails` should run each candidate several times.
    After `most` candidates, return the smallest that failed.
    """
    kept, parts, tried = list(range(count)), 2, 0
    if fails([]):
        return []
    while len(kept) > 1 and tried < most:
        size = max(1, len(kept) // parts)
        chunks = [kept[start : start + size] for start in range(0, len(kept), size)]
        candidates = chunks if parts == 2 else []
        candidates += [[one for one in kept if one not in chunk] for chunk in chunks]
        for candidate in candidates:
            tried += 1
            if len(candidate) < len(kept) and fails(candidate):
                kept, parts = candidate, 2
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(kept))
    return kept
