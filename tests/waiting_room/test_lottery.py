"""The lottery: drawn once, and anyone can repeat it from the public record."""

from __future__ import annotations

import threading
from unittest.mock import Mock

import pytest

from devservers.faults.waiting import until
from shop.errors import ServiceUnavailable
from tests.shop.races.race_worker import RaceWorker, end_leases
from tests.waiting_room.rooms import a_room, open_now
from tools.verify_lottery import differences, draw
from waiting_room import lottery, service, store
from waiting_room.models import Room
from waiting_room.service import join, place_of, record_of, status_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]


def a_lottery(people: int, **sale: float) -> Room:
    """Create a room with this many people, whose customer ids are 1, 2, ..."""
    room = a_room(mode=Room.Mode.LOTTERY, opens_in=3600, inlet=600, **sale)
    for customer in range(1, people + 1):
        join(sale=room.sale, customer_id=customer)
    return service.open_room(room=room)


def test_first_poll_after_the_opening_draws_and_the_record_proves_it() -> None:
    room = a_lottery(30)
    before = record_of(room=room)
    assert (before["seed"], before["root"], before["list"]) == (None, None, None)
    assert status_of(sale=room.sale).state == "before"
    assert place_of(sale=room.sale, customer_id=1).position is None
    open_now(room.sale)
    assert status_of(sale=room.sale).state in ("shuffling", "open")
    late = join(sale=room.sale, customer_id=31)
    until(lambda: place_of(sale=room.sale, customer_id=1).position is not None, "the draw")

    record = record_of(room=room)
    assert differences(record, before["commitment"]) == []
    assert (len(record["list"]), record["late"], late.position) == (30, 1, 31)
    assert positions_follow_the_record(room)
    assert Room.objects.get().root == record["root"]
    everyone = [place_of(sale=room.sale, customer_id=one) for one in range(1, 32)]
    assert sorted(place.position for place in everyone) == list(range(1, 32))


def test_draw_without_a_free_thread_is_repeated(monkeypatch) -> None:
    """The page failed, and its process never drew again."""
    room = a_lottery(3)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("no thread")))
        open_now(room.sale)
        assert status_of(sale=room.sale).state == "shuffling"
    service.clear()
    until(lambda: status_of(sale=room.sale).state == "open", "the draw")


def test_seed_is_secret_until_the_order_is_in_force(monkeypatch) -> None:
    room = a_lottery(3)
    monkeypatch.setattr(lottery, "start", lambda **_: None)
    open_now(room.sale)
    record = record_of(room=room)
    assert (record["seed"], len(record["list"])) == (None, 3)
    assert status_of(sale=room.sale).state == "shuffling"
    assert status_of(sale=room.sale).serving == 0
    assert lottery.draw(room=room, cutoff=3)
    drawn = record_of(room=room)
    assert drawn["seed"] == room.seed
    assert drawn["root"] == record["root"]


def test_empty_lottery_admits_those_who_come_later() -> None:
    room = a_lottery(0)
    open_now(room.sale)
    until(lambda: status_of(sale=room.sale).state == "open", "the draw of nothing")
    assert join(sale=room.sale, customer_id=1).position == 1
    until(lambda: place_of(sale=room.sale, customer_id=1).admitted, "admission")


@pytest.fixture
def drawing(processes) -> tuple[Room, RaceWorker]:
    """A lottery of 50 and another process, which is about to put the order in force."""
    room = a_lottery(50)
    open_now(room.sale)
    store.visit(room=room, sale=room.sale)
    (worker,) = processes(1)
    worker.run_until("room.root_fixed", {"do": "draw", "room": room.pk, "cutoff": 50})
    return room, worker


def test_two_processes_draw_once(drawing) -> None:
    room, other = drawing
    drawn = lottery.draw(room=room, cutoff=50)
    assert {drawn, other.finish()[0]["drawn"]} == {False, True}
    assert positions_follow_the_record(room)


@pytest.mark.faults(row="R")
def test_draw_of_a_killed_process_is_repeated_by_another(drawing) -> None:
    room, killed = drawing
    root = Room.objects.get().root
    killed.kill()
    end_leases("redis")
    assert lottery.draw(room=room, cutoff=50)
    assert not lottery.draw(room=room, cutoff=50)
    assert Room.objects.get().root == root
    assert positions_follow_the_record(room)


def test_lottery_is_not_drawn_again_with_another_list() -> None:
    """The seed may be public by then: who chooses the list would choose the positions."""
    room = a_lottery(5)
    open_now(room.sale)
    store.visit(room=room, sale=room.sale)
    Room.objects.update(root="0" * 64)
    with pytest.raises(ServiceUnavailable):
        lottery.draw(room=room, cutoff=5)
    assert place_of(sale=room.sale, customer_id=1).position is None


def positions_follow_the_record(room: Room) -> bool:
    """Return whether the visitors' script computes everyone's position from the record alone."""
    positions = {ticket: n for n, ticket in enumerate(draw(record_of(room=room)), 1)}
    places = [place_of(sale=room.sale, customer_id=one) for one in range(1, len(positions) + 1)]
    return {place.ticket: place.position for place in places} == positions
