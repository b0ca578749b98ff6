"""The search itself, on clients without a store; test_programs.py has its counts and deadlocks."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import pytest

from verification.interleavings.schedule import (
    Choice,
    Client,
    Result,
    Schedule,
    Unrepeatable,
    search,
)

Play = Callable[[Client], object]


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    made = [Client(name) for name in "AB"]
    yield made
    for client in made:
        client.end()


def explore(
    clients: Sequence[Client],
    play: Play,
    judge: Callable[[Schedule], str] = lambda schedule: "",
) -> Result:
    def perform(prefix: list[Choice]) -> tuple[Schedule, str]:
        schedule = Schedule(clients, [], prefix)
        schedule.run(play)
        return schedule, judge(schedule)

    return search(perform, 1000)


def test_shortest_violating_run_is_kept(clients: list[Client]) -> None:
    """The first run in which both buy has a step more."""
    read, sold = list[str](), list[str]()

    def buy(client: Client) -> None:
        client.step("read")
        read.append(client.label)
        if read == ["A"]:
            client.step("think")
        if not sold:
            client.step("write")
            sold.append(client.label)

    def judge(schedule: Schedule) -> str:
        is_oversold = len(sold) > 1
        read.clear()
        sold.clear()
        return "oversold" if is_oversold else ""

    found = explore(clients, buy, judge)
    assert found.violation == "oversold"
    assert found.trace == ("B: read", "A: read", "A: write", "B: write")


def test_program_that_differs_or_fails_ends_the_search(clients: list[Client]) -> None:
    runs = iter(range(100))

    def differ(client: Client) -> None:
        if client.label == "A" or next(runs) == 0:
            client.step("one")

    def fail(client: Client) -> None:
        client.step("one")
        raise LookupError(client.label)

    with pytest.raises(Unrepeatable):
        explore(clients, differ)
    with pytest.raises(LookupError, match="A"):
        explore(clients, fail)


def test_signal_ends_the_run_and_its_clients(clients: list[Client]) -> None:
    """As Ctrl-C does: the fixture then waits for the threads."""

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise KeyboardInterrupt

    def play(client: Client) -> None:
        while True:
            client.step("one")
            os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            explore(clients, play)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all(client.is_done for client in clients)
