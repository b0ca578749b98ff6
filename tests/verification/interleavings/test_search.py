"""The search itself, on clients without a store: what it counts, finds and repeats."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from math import comb
from typing import NoReturn

import pytest

from verification.interleavings.schedule import Choice, Client, Fault, Schedule, Unrepeatable
from verification.interleavings.search import Result, search

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
    limit: int = 1000,
    faults: Callable[[], list[Fault]] = list,
) -> Result:
    def perform(prefix: list[Choice]) -> tuple[Schedule, str]:
        schedule = Schedule(clients, faults(), prefix)
        schedule.run(play)
        return schedule, "deadlock" if schedule.is_stuck else judge(schedule)

    return search(perform, limit)


def three_steps(client: Client) -> None:
    for step in "abc":
        client.step(step)


def test_all_orders_are_run_once_up_to_the_limit(clients: list[Client]) -> None:
    seen = []
    found = explore(clients, three_steps, lambda one: str(seen.append(tuple(one.steps)) or ""))
    assert (found.runs, found.is_complete) == (comb(6, 3), True)
    assert len(set(seen)) == comb(6, 3)
    assert all(sorted(steps) == sorted(seen[0]) for steps in seen)
    found = explore(clients, three_steps, limit=7)
    assert (found.runs, found.is_complete) == (7, False)


def test_fault_is_injected_between_any_two_steps(clients: list[Client]) -> None:
    injected = []

    def fault() -> list[Fault]:
        return [Fault("fault", lambda: True, lambda: injected.append(1))]

    found = explore(clients[:1], three_steps, faults=fault)
    assert found.runs == 4  # before each step, or never
    assert len(injected) == 3


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
    assert 0 < found.violations < found.runs


def test_wait_for_nothing_is_a_deadlock(clients: list[Client]) -> None:
    waiting: set[str] = set()

    def wait_for_each_other(client: Client) -> None:
        client.step("takes one")
        waiting.add(client.label)
        client.step("takes the other", lambda: len(waiting) < 2)
        waiting.clear()

    found = explore(clients, wait_for_each_other)
    assert found.violation == "deadlock"
    assert found.trace == ("A: takes one", "B: takes one")
    assert 0 < found.violations < found.runs


def test_crashed_client_takes_no_further_step(clients: list[Client]) -> None:
    def crash() -> list[Fault]:
        return [Fault("A crashes", lambda: not clients[0].is_done, clients[0].crash)]

    runs = []
    found = explore(
        clients, three_steps, lambda one: str(runs.append(one.steps) or ""), 10**6, crash
    )
    assert found.is_complete
    crashed = [steps for steps in runs if "A crashes" in steps]
    assert crashed
    assert len(crashed) < len(runs)
    for steps in crashed:
        after = steps[steps.index("A crashes") :]
        assert not any(step.startswith("A:") for step in after)


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
