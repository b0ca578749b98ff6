"""Places and admission in Redis, under a clock that the test sets."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from devservers import Redis
from devservers.faults.clock import Clock
from devservers.faults.waiting import until
from shop.errors import ServiceUnavailable
from shop.platform.redis import command
from tests.waiting_room.rooms import StoredRoom
from waiting_room import store


@pytest.fixture
def clock(tmp_path: Path, settings) -> Iterator[Clock]:
    """Return the clock of a private Redis."""
    clock, redis = Clock(tmp_path), Redis()
    clock.drive(redis)
    with redis:
        settings.REDIS_URL = redis.url
        yield clock


def a_full_room(people: int, **fields: object) -> StoredRoom:
    """Return a room whose sale opens now: no one is admitted yet."""
    room = StoredRoom(opens_in=3600, **fields)
    room.fill(people)
    room.open_now()
    return room


def test_list_at_the_opening_is_fixed_before_the_next_arrival() -> None:
    room = StoredRoom(opens_in=60, mode="lottery")
    room.fill(3)
    assert room.visit().cutoff is None
    room.open_now()
    late = room.join(99)
    assert (late.cutoff, late.joined, late.number, late.position) == (3, 4, 4, 4)
    assert late.is_drawing
    assert room.visit(2).position is None, "the lottery has not been drawn"
    assert room.visit().serving == 0


def test_fast_visits_lose_no_fraction(clock) -> None:
    """At 100 visits a second every step admits a hundredth of a person."""
    room = a_full_room(100, inlet_per_minute=60)
    began = room.visit()
    for step in range(1, 301):
        clock.shift(step / 100)
        seen = room.visit()
    assert abs(seen.serving - began.serving - (seen.now - began.now) / 1000) <= 1


def test_admissions_are_saved_up_for_one_second_only(clock) -> None:
    room = StoredRoom(inlet_per_minute=600)
    for second in range(1, 60):
        clock.shift(second)
        room.visit()
    first = room.join(1)
    assert first.position <= first.serving, "a lone customer does not wait"
    room.fill(200)
    seen = room.visit()
    elapsed = (seen.now - first.now) / 1000
    assert seen.serving <= 10 * (1 + elapsed) + 1


def test_admission_does_not_catch_up_after_an_interruption(clock) -> None:
    room = a_full_room(100, inlet_per_minute=60)
    before = room.visit()
    clock.shift(1800)
    assert 9 <= room.visit().serving - before.serving <= 11


def test_clock_that_goes_back_takes_nothing_back(clock) -> None:
    room = StoredRoom(inlet_per_minute=60, opens_in=-7200, lasts=10_000)
    room.fill(100)
    room.visit()
    clock.shift(5)
    before = room.visit().serving
    clock.shift(-3600)
    assert room.visit().serving == before >= 5
    clock.shift(-3595)
    assert room.visit().serving >= before + 4


def test_paused_room_admits_no_one_and_makes_up_for_nothing(clock) -> None:
    room = a_full_room(100, inlet_per_minute=60)
    room.room.is_paused = True
    store.configure(room=room.room, changed=5)
    before = room.visit()
    clock.shift(8)
    seen = room.visit()
    assert (seen.serving, seen.is_paused, seen.changed) == (before.serving, 1, 5)
    room.room.is_paused = False
    store.configure(room=room.room)
    resumed = room.visit()
    assert resumed.serving - before.serving <= (resumed.now - seen.now) / 1000 + 1
    clock.shift(13)
    assert room.visit().serving >= before.serving + 4


def test_turns_are_limited_by_the_units_that_are_left(clock, settings) -> None:
    """Two for each unit; more only when units are bought or turns are over."""
    room = a_full_room(100, inlet_per_minute=60_000)
    room.sale.stock.quantity = 5
    clock.shift(1)
    seen = room.visit()
    assert (seen.serving, seen.lapsed, seen.is_full) == (10, 0, 1)
    assert 0.8 < room.visit(10).lasts / 1000 / settings.WAITING_ROOM_TURN_SECONDS < 1.01
    assert room.visit(11).lasts is None
    first, *_ = (room.visit(buyer, "buy") for buyer in (1, 2, 3, 1))
    room.sale.stock.quantity = 4
    seen = room.visit()
    late = seen.now > first.now + 1000
    assert seen.serving == 10 or late, "the purchases are not all in the stock yet"
    clock.shift(settings.WAITING_ROOM_TURN_SECONDS * 0.5)
    assert (room.visit().lapsed, room.visit().serving) == (0, 8 + 3)
    clock.shift(settings.WAITING_ROOM_TURN_SECONDS * 1.25)
    assert (room.visit().lapsed, room.visit().serving) == (10, 10 + 8)
    assert (room.visit(1).lasts, room.visit(1, "buy").lasts) == (None, None)


def test_turn_lasts_while_no_one_waits_for_its_unit(clock, settings) -> None:
    room = a_full_room(3, inlet_per_minute=60_000)
    room.sale.stock.quantity = 1
    clock.shift(1)
    assert room.visit().serving == 2
    room.sale.stock.quantity = 2
    assert room.visit().serving == 3
    clock.shift(2 * settings.WAITING_ROOM_TURN_SECONDS)
    assert (room.visit(2).lasts, room.visit().lapsed) == (0, 0)
    assert room.join(4).serving == 4, "one more turn is free"
    assert room.join(5).lapsed == 3
    assert room.visit(5).lasts > 0


@pytest.mark.parametrize("is_limited", [True, False])
def test_returned_units_are_offered_in_order(clock, settings, is_limited) -> None:
    """Two were admitted for one unit; one of them has bought it."""
    turn = settings.WAITING_ROOM_TURN_SECONDS
    if not is_limited:
        settings.WAITING_ROOM_TURN_SECONDS = 10**9
    room, passed = a_full_room(6, inlet_per_minute=60_000), 1

    def wait(seconds: int) -> None:
        nonlocal passed
        passed += seconds
        clock.shift(passed)

    def with_turn() -> list[int]:
        room.visit()
        return [one for one in range(1, 7) if room.visit(one).lasts is not None]

    room.sale.stock.quantity = 1
    wait(0)
    assert with_turn() == [1, 2]
    room.visit(1, "buy")
    room.sale.stock.quantity = 0
    assert with_turn() == [1, 2]
    wait(10)
    room.sale.stock.quantity = 1
    assert with_turn() == [1, 2], "the second has not had its time yet"
    wait(turn)
    if not is_limited:  # the control: of all who were ever admitted, the fastest buys
        assert with_turn() == [1, 2]
        return
    assert with_turn() == [3]
    wait(turn + 1)
    assert with_turn() == [4]
    assert (room.join(3).number, room.join(4).number) == (7, 4), "after a turn, at the end"
    assert room.visit(4, "buy").lasts > 0
    room.sale.stock.quantity = 0
    wait(2)
    room.sale.stock.quantity = 1
    assert with_turn() == [4, 5], "the unit of the fourth is gone from the stock"
    wait(turn + 1)
    assert with_turn() == [6]
    wait(turn + 1)
    assert with_turn() == [3]
    assert store.arrivals(room=room.room, until=7) == [1, 2, 3, 4, 5, 6, 3]


def test_turns_do_not_end_while_the_room_is_paused(clock, settings) -> None:
    room = a_full_room(10, inlet_per_minute=60_000)
    room.sale.stock.quantity = 1
    clock.shift(1)
    room.visit()
    for is_paused, lapsed in ((True, 0), (False, 2)):
        room.room.is_paused = is_paused
        store.configure(room=room.room)
        clock.shift(2 * settings.WAITING_ROOM_TURN_SECONDS)
        seen = room.visit(1)
        assert (seen.lapsed, seen.lasts) == (lapsed, 0 if is_paused else None)


@pytest.mark.parametrize("lost", ["turns", "clock"])
def test_time_of_turns_begins_again_if_it_is_lost(clock, settings, lost) -> None:
    """No one loses a turn by it, and no turn lasts for ever."""
    turn = settings.WAITING_ROOM_TURN_SECONDS
    room = a_full_room(10, inlet_per_minute=60_000, lasts=100_000)
    room.sale.stock.quantity = 1
    clock.shift(7200)
    room.visit()
    if lost == "turns":
        command("UNLINK", store.keys_of(room.room)[3])
    began = 3600 if lost == "clock" else 7200 + turn // 2
    clock.shift(began)
    seen = room.visit(2)
    assert (seen.lapsed, seen.lasts >= 1000 * turn) == (0, True)
    clock.shift(began + turn + 2)
    assert (room.visit().lapsed, room.visit().serving) == (2, 4)


def test_visit_costs_as_much_with_100_000_people() -> None:
    """Microseconds of Redis for a visit, of a room in which half of the people had their turn."""

    def cost(people: int) -> float:
        room = StoredRoom(inlet_per_minute=60_000)
        state, _, _, turns, tried = store.keys_of(room.room)
        room.fill(people)
        command("HSET", state, "serving", people // 2)
        command("SETBIT", tried, people // 2, 1)
        for second in range(120):
            command("RPUSH", turns, f"{int(time.time()) - 120 + second} {people // 2}")
        costs = []
        for batch in range(10):
            command("CONFIG", "RESETSTAT")
            for customer in range(50):
                room.visit(people // 2 - 1 - 50 * batch - customer)
            stats = command("INFO", "commandstats")
            costs.append(float(re.search(r"cmdstat_evalsha:.*?usec_per_call=([\d.]+)", stats)[1]))
        return min(costs)  # without the time in which the server had no processor

    few, many = cost(1000), cost(100_000)
    assert many < 3 * few + 100


def test_order_of_a_lottery_is_drawn_once() -> None:
    room = StoredRoom(opens_in=60, mode="lottery", inlet_per_minute=6000)
    room.fill(3)
    assert not store.draw(room=room.room, positions=[1, 2, 3]), "there is no list yet"
    room.open_now()
    room.join(99)
    assert not store.draw(room=room.room, positions=[1, 2]), "the list is longer"
    assert store.draw(room=room.room, positions=[3, 1, 2])
    assert not store.draw(room=room.room, positions=[1, 2, 3])
    assert [room.visit(customer).position for customer in (1, 2, 3, 99)] == [3, 1, 2, 4]
    until(lambda: room.visit().serving == 4, "all to be admitted")


def test_arrivals_are_complete_or_refused() -> None:
    room = StoredRoom(opens_in=60)
    room.fill(1200)
    assert store.arrivals(room=room.room, until=1100) == list(range(1, 1101))
    command("HDEL", store.keys_of(room.room)[1], 500)
    with pytest.raises(ServiceUnavailable):
        store.arrivals(room=room.room, until=1100)


def test_people_need_less_than_300_bytes_each() -> None:
    room = StoredRoom(opens_in=60, mode="lottery")
    room.fill(3000)
    room.open_now()
    room.visit()
    assert store.draw(room=room.room, positions=range(3000, 0, -1))
    used = sum(
        int(command("MEMORY", "USAGE", key, "SAMPLES", 0) or 0) for key in store.keys_of(room.room)
    )
    assert used / 3000 < 300


def test_state_expires_after_the_sale() -> None:
    room = StoredRoom(opens_in=60, lasts=600, mode="lottery", inlet_per_minute=60_000)
    room.fill(2)
    room.open_now()
    room.visit()
    store.draw(room=room.room, positions=[2, 1])
    until(lambda: room.visit(2, "buy").lasts, "the turn")
    times = {int(command("PEXPIRETIME", key)) for key in store.keys_of(room.room)}
    assert times == {round(room.sale.closes_at.timestamp() * 1000) + 7 * 24 * 3600 * 1000}
