"""`manage.py lab fairness`: a fair room passes, and each way of cheating is found."""

import os
import subprocess
import sys
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.conf import settings
from django.core.management import CommandError
from django.utils import timezone

from loadtest.bench import fairness
from shop.models import Order, Sale
from shop.platform.redis import command
from shop.purchase import admission
from tests.loadtest.lab import lab
from tests.shop.making import a_customer
from tests.waiting_room.rooms import a_room
from waiting_room import lottery, service, store
from waiting_room.models import Room

PEOPLE, LATE = 100, 3
SIMULATION = ("--simulate=3", "--people=1000", "--seed=5")


def opened(mode: str) -> Room:
    """Return a room in which PEOPLE waited until the sale opened."""
    room = a_room(mode=mode, opens_in=3600, inlet=60_000)
    for customer in range(PEOPLE):
        service.join(sale=room.sale, customer_id=10_000 + customer)
    opens_at = timezone.now() - timedelta(seconds=1)
    Sale.objects.filter(pk=room.sale_id).update(opens_at=opens_at)
    admission.clear()
    service.clear()
    room = Room.objects.select_related("sale__stock").get(pk=room.pk)
    seen = store.visit(room=room, sale=room.sale)
    assert seen
    assert seen.cutoff == PEOPLE
    return room


@pytest.fixture
def drawn(transactional_db: None) -> Room:
    """A lottery that was drawn, and a few people who came later."""
    room = opened(Room.Mode.LOTTERY)
    assert lottery.draw(room=room, cutoff=PEOPLE)
    for customer in range(LATE):
        service.join(sale=room.sale, customer_id=20_000 + customer)
    room.refresh_from_db(fields=["root"])
    return room


def test_fair_rooms_have_no_differences(drawn: Room) -> None:
    report, code = lab("fairness", drawn.sale.slug)
    assert (report["differences"], code) == ([], 0)
    assert (report["mode"], report["people"]) == ("lottery", PEOPLE + LATE)
    assert report["standard_error"] == pytest.approx(PEOPLE**-0.5)
    assert abs(report["correlation"]) < 5 * report["standard_error"]
    report, code = lab("fairness", opened(Room.Mode.ARRIVAL).sale.slug)
    assert (report["differences"], code) == ([], 0)
    assert (report["mode"], report["correlation"]) == ("arrival", 1.0)


def changed(value: Any) -> Any:
    """Return a field of the record with one bit or character changed."""
    if isinstance(value, list):
        return [*value[:-1], changed(value[-1])]
    if isinstance(value, int):
        return value ^ 1
    return value[:-1] + ("0" if value[-1] != "0" else "1")


def differences(room: Room, record: dict[str, Any]) -> list[str]:
    """Return what is found if the shop publishes this record."""
    with patch.object(service, "record_of", return_value=record):
        report, code = lab("fairness", room.sale.slug)
    assert code == bool(report["differences"])
    return list(report["differences"])


def hide_a_reset(room: Room) -> None:
    """Store an earlier seed that the record, as it was published, does not have."""
    Room.objects.filter(pk=room.pk).update(earlier=[{"seed": room.seed}])


def swap_positions(room: Room) -> None:
    order = store.keys_of(room)[2]
    first, second = command("GETRANGE", order, 0, 7), command("GETRANGE", order, 8, 15)
    command("SETRANGE", order, 0, second + first)


def draw_in_the_order_of_arrival(room: Room) -> None:
    arrival = "".join(f"{number:08x}" for number in range(1, PEOPLE + 1))
    command("SET", store.keys_of(room)[2], arrival)


def test_each_cheat_is_found(drawn: Room) -> None:
    record = service.record_of(room=drawn)
    fields = {"sale", "mode", "commitment", "root", "seed", "list", "late"}
    assert set(record) == {*fields, "earlier"}
    assert differences(drawn, record) == []
    for field in fields:
        assert differences(drawn, record | {field: changed(record[field])}), field
    for cheat, found in (
        (hide_a_reset, "The record's earlier is not that of the shop."),
        (swap_positions, fairness.OTHER_POSITIONS),
        (draw_in_the_order_of_arrival, fairness.NOT_RANDOM),
    ):
        assert found not in differences(drawn, record)
        cheat(drawn)
        assert found in differences(drawn, record)


def test_purchase_before_its_turn_is_found(drawn: Room) -> None:
    customer = a_customer()
    order = {"quantity": 1, "unit_price": 1, "key": "key", "pay_by": timezone.now()}
    Order.objects.create(customer=customer, sale=drawn.sale, **order)
    assert lab("fairness", drawn.sale.slug)[1] == 1, "without a place"
    Room.objects.filter(pk=drawn.pk).update(is_paused=True)
    drawn.refresh_from_db()
    store.configure(room=drawn)
    place = service.join(sale=drawn.sale, customer_id=customer.pk)
    assert len(lab("fairness", drawn.sale.slug)[0]["differences"]) == 1
    command("HSET", store.keys_of(drawn)[0], "serving", place.position)
    assert lab("fairness", drawn.sale.slug)[1] == 0


def test_bad_arguments_are_refused(drawn: Room) -> None:
    store.delete(room=drawn)
    for options, message in (
        (["unknown"], "not a sale with a waiting room"),
        ([drawn.sale.slug], "cannot be read"),
        ([], "Name a sale, or simulate"),
        (["spring", "--simulate=2"], "Name a sale, or simulate"),
        (["--simulate=2", "--people=0"], "people"),
        (["--simulate=2", "--inlet=0"], "inlet"),
    ):
        with pytest.raises(CommandError, match=message):
            lab("fairness", *options)


def test_lab_works_without_waiting_rooms() -> None:
    command = [sys.executable, "manage.py", "lab", "fairness", "--simulate=1"]
    environ = os.environ | {"WAITING_ROOM": "0"}
    done = subprocess.run(
        command, cwd=settings.BASE_DIR, env=environ, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, "WAITING_ROOM=1" in done.stderr) == (2, True), done.stderr


def test_simulated_lotteries_are_fair_and_repeatable() -> None:
    report, code = lab("fairness", *SIMULATION)
    assert code == 0
    assert len(report["correlations"]) == 3
    assert report == lab("fairness", *SIMULATION)[0]
    assert report["correlations"] != lab("fairness", *SIMULATION[:2], "--seed=6")[0]["correlations"]


@pytest.mark.parametrize(
    ("name", "replacement"),
    [
        ("shuffle", lambda tickets, **secrets: list(tickets)),
        ("estimate", lambda **place: (0, 0)),
    ],
)
def test_simulation_detects_a_bad_draw_and_a_bad_estimate(
    name: str, replacement: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fairness, name, replacement)
    report, code = lab("fairness", *SIMULATION)
    assert (code, [target["met"] for target in report["targets"]].count(False)) == (1, 1)
