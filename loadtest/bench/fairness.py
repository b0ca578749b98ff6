"""Prove that a waiting room is fair: its record, its positions, its admissions, its estimates."""

import math
import random
from collections.abc import Sequence
from typing import Any

from shop.errors import ServiceUnavailable
from shop.models import Order
from shop.platform.redis import command
from tools.verify_lottery import differences, draw
from waiting_room import service, store
from waiting_room.models import Room
from waiting_room.store import Snapshot
from waiting_room.tickets import root_of, shuffle, ticket_of
from waiting_room.views import estimate

Report = dict[str, Any]
MAX_ERRORS = 5.0
"""Standard errors of the correlation; one fair lottery in two million exceeds them."""
OTHER_POSITIONS = "The positions in Redis are not those of the record."
NOT_RANDOM = "The positions of the lottery follow the order of arrival."
PAUSE = 60.0
"""Seconds for which admission is paused in a simulated sale."""


def verify(room: Room) -> Report:
    """Compare the room's public record, the positions in Redis and the orders of its sale.

    Raise ServiceUnavailable if Redis is, or has lost the places.
    """
    # Before the number that is served, which never falls.
    buyers = set(Order.objects.filter(sale=room.sale_id).values_list("customer_id", flat=True))
    seen = store.visit(room=room, sale=room.sale)
    if seen is None:
        raise ServiceUnavailable("Redis has lost the places of this room.")
    customers = store.arrivals(room=room, until=seen.joined)
    tickets = [ticket_of(key=room.ticket_key, customer_id=one) for one in customers]
    positions = list(range(1, seen.joined + 1))
    drawn = command("GET", store.keys_of(room)[2]) or ""
    positions[: len(drawn) // 8] = [int(drawn[at : at + 8], 16) for at in range(0, len(drawn), 8)]
    found = _wrong_positions(room, seen, tickets, positions)
    # The first position of a customer who has joined again.
    by_customer = dict(reversed([*zip(customers, positions, strict=False)]))
    early = [one for one in buyers if by_customer.get(one, math.inf) > seen.serving]
    if early:
        found.append(f"{len(early)} customers bought and were not admitted.")
    ranks = correlation(positions[: seen.cutoff])
    if seen.drawn and abs(ranks["correlation"]) > MAX_ERRORS * ranks["standard_error"]:
        found.append(NOT_RANDOM)
    about = {"sale": room.sale.slug, "mode": room.mode, "people": seen.joined}
    admitted = {"serving": seen.serving, "buyers": len(buyers)}
    return {**about, **admitted, **ranks, "differences": found}


def _wrong_positions(
    room: Room, seen: Snapshot, tickets: list[str], positions: Sequence[int]
) -> list[str]:
    """Return the differences between the record, which visitors see, and the shop's stores."""
    record, present = service.record_of(room=room), tickets[: seen.cutoff or 0]
    claims: dict[str, object] = {
        "sale": room.sale.slug,
        "mode": room.mode,
        "commitment": room.commitment,
        "list": None if seen.cutoff is None else sorted(present),
        "late": len(tickets) - len(present),
        "earlier": room.earlier or [],
    }
    expected = tickets
    if room.mode == Room.Mode.LOTTERY:
        if found := differences(record):
            return found
        claims |= {"root": room.root, "seed": room.seed}
        expected = [*draw(record), *tickets[len(present) :]]
    found = [
        f"The record's {name} is not that of the shop."
        for name, value in claims.items()
        if record[name] != value
    ]
    if sorted(zip(positions, tickets, strict=False)) != list(enumerate(expected, 1)):
        found.append(OTHER_POSITIONS)
    return found


def correlation(positions: Sequence[int]) -> dict[str, float]:
    """Return the rank correlation of arrival and position, and its error in a fair lottery."""
    size = len(positions)
    squares = sum((position - number) ** 2 for number, position in enumerate(positions, 1))
    scale = size * (size**2 - 1)
    found = 1 - 6 * squares / scale if scale else 0.0
    return {"correlation": found, "standard_error": 1 / math.sqrt(size) if size else 0.0}


def simulate(*, runs: int, people: int, inlet: int, seed: int) -> Report:
    """Draw lotteries with the shop's own code, and test the estimates with a pause in each run.

    The clock is simulated: `inlet` people are admitted per minute. Each person looks at the
    estimate at a random moment; it holds if its range contains the time until the person's turn.
    """
    chance = random.Random(seed)
    correlations, estimates = [], []
    for _ in range(runs):
        key, secret = chance.randbytes(32).hex(), chance.randbytes(32).hex()
        tickets = [ticket_of(key=key, customer_id=one) for one in range(people)]
        order = shuffle(tickets, seed=secret, root=root_of(tickets))
        positions = {ticket: number for number, ticket in enumerate(order, 1)}
        correlations.append(correlation([positions[ticket] for ticket in tickets]))
        pause = chance.uniform(0, 60 * people / inlet)
        held = (_holds(position, inlet, pause, chance) for position in positions.values())
        estimates.append(sum(held) / people)
    return {
        "settings": {"runs": runs, "people": people, "inlet": inlet, "seed": seed},
        "correlations": [one["correlation"] for one in correlations],
        "standard_error": correlations[0]["standard_error"],
        "estimates_held": estimates,
    }


def _holds(position: int, inlet: int, pause: float, chance: random.Random) -> bool:
    """Return True if the estimate of a person held; the pause begins after `pause` seconds."""
    turn = 60 * position / inlet
    turn += PAUSE * (turn > pause)
    now = chance.uniform(0, turn)
    serving = int(inlet / 60 * (now - min(max(now - pause, 0), PAUSE)))
    least, most = estimate(position=position, serving=serving, inlet_per_minute=inlet)
    return least <= (turn - now) / 60 <= most
