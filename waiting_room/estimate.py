"""The estimated time until a position is admitted. static/js/room.js repeats the formula."""


def estimate(*, position: int, serving: int, inlet_per_minute: int) -> tuple[int, int]:
    """Return the least and the most minutes to wait: 20 % around the quotient, in whole minutes.

    With a constant inlet neither ever rises, because `serving` never falls. (0, 0) once admitted.
    """
    tenths, ahead = 10 * inlet_per_minute, max(0, position - serving)
    return 8 * ahead // tenths, -(-12 * ahead // tenths)
