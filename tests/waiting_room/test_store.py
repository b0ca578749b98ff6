"""Places and admission in Redis, under a clock that the test sets."""

from __future__ import annotations

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
    """Return a room whose sale opens now: however long the joining took, no one is admitted."""
    room = StoredRoom(opens_in=3600, **fields)
    room.fill(people)
    room.open_now()
    return room


def test_numbers_follow_the_order_of_arrival() -> None:
    room = StoredRoom(opens_in=60)
    assert [room.join(customer).number for customer in (7, 5, 7, 9)] == [1, 2, 1, 3]
    assert room.visit(5).position == 2
    assert (room.visit(8).number, room.visit().joined) == (None, 3)


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


def test_admission_is_the_inlet_times_the_elapsed_time(clock) -> None:
    """In steps of a second each of which admits a fraction of a person; none is lost."""
    room = a_full_room(60, inlet_per_minute=7)
    began = room.visit()
    served = [began.serving]
    for second in range(1, 200):
        clock.shift(second)
        seen = room.visit()
        served.append(seen.serving)
    assert served == sorted(served)
    assert seen.serving >= 23
    assert abs(seen.serving - began.serving - (seen.now - began.now) * 7 / 60_000) <= 1


def test_fast_visits_lose_no_fraction(clock) -> None:
    """At 100 visits a second every step admits a hundredth of a person."""
    room = a_full_room(300, inlet_per_minute=60)
    began = room.visit()
    for step in range(1, 1001):
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


def test_waiting_list_gets_returned_units_in_order(clock) -> None:
    """Sold out: admission stands. One unit returns: one more person a second is admitted."""
    room = a_full_room(500, inlet_per_minute=6000)
    room.sale.stock.quantity = 0
    room.visit()
    clock.shift(9)
    sold_out = room.visit()
    assert sold_out.serving == 0
    room.sale.stock.quantity = 1
    clock.shift(14)
    returned = room.visit()
    elapsed = min(returned.now - sold_out.now, 10_000)
    assert elapsed >= 4000
    assert abs(returned.serving - elapsed / 1000) <= 1
    room.sale.stock.quantity = 100
    clock.shift(15)
    seen = room.visit()
    elapsed = min(seen.now - returned.now, 10_000)
    assert seen.serving == 500 or abs(seen.serving - returned.serving - elapsed / 10) <= 1
    assert seen.serving >= 90


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


def test_lost_state_is_noticed_and_not_created_by_a_change() -> None:
    room = StoredRoom()
    store.delete(room=room.room)
    store.configure(room=room.room)
    assert store.visit(room=room.room, sale=room.sale) is None


def test_created_state_is_kept() -> None:
    room = StoredRoom()
    room.join(1)
    store.create(room=room.room)
    assert room.visit().joined == 1


def test_people_need_less_than_300_bytes_each() -> None:
    room = StoredRoom(opens_in=60, mode="lottery")
    room.fill(3000)
    room.open_now()
    room.visit()
    assert store.draw(room=room.room, positions=range(3000, 0, -1))
    used = sum(
        int(command("MEMORY", "USAGE", key, "SAMPLES", 0)) for key in store.keys_of(room.room)
    )
    assert used / 3000 < 300


def test_state_expires_after_the_sale() -> None:
    room = StoredRoom(opens_in=60, lasts=600, mode="lottery")
    room.fill(2)
    room.open_now()
    room.visit()
    store.draw(room=room.room, positions=[2, 1])
    times = {int(command("PEXPIRETIME", key)) for key in store.keys_of(room.room)}
    assert times == {round(room.sale.closes_at.timestamp() * 1000) + 7 * 24 * 3600 * 1000}
