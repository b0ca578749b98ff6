"""Run a few clients one store operation at a time, in the order that a schedule chooses.

Each client is a thread that calls `step` before an operation and then stops until it is chosen, so
exactly one thread runs. The thread that stops chooses the next one. Faults are choices too.

`search` goes depth-first through all interleavings of a program: each run follows the last one
further. No state is stored: a run begins with empty stores and repeats the choices of its prefix
(stateless model checking, P. Godefroid, "Model checking for programming languages using VeriSoft",
1997). No order is left out as equivalent to another.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Semaphore, Thread, local
from typing import Any, NamedTuple

_local = local()


def current_client() -> "Client | None":
    """Return the client that this thread is, or None outside of one."""
    client: Client | None = getattr(_local, "client", None)
    return client


class Stopped(BaseException):
    """Raised in a client that crashes, or whose run is over."""


class Unrepeatable(RuntimeError):
    """A schedule that was followed again led to other choices."""


@dataclass(slots=True)
class Fault:
    """A fault that the scheduler may inject once, between any two operations."""

    name: str
    is_possible: Callable[[], bool]
    inject: Callable[[], object]
    """Returns the client that must run next, if the fault concerns a single one."""
    is_left: bool = True


class Choice(NamedTuple):
    """A choice at one point: its number, and how many choices there were."""

    number: int
    of: int


class Client(Thread):
    """A client: one thread, which serves one run after the other."""

    def __init__(self, name: str) -> None:
        super().__init__(name=f"client-{name}", daemon=True)
        self.label = name
        self.baton = Semaphore(0)
        """Released by the thread that lets this one go on."""
        self.schedule: Schedule | None = None
        self.program: Callable[[Client], object] = lambda client: None
        self.next = ""
        """The action when it is chosen."""
        self.is_ready: Callable[[], bool] = lambda: True
        self.on_resume: Callable[[], object] = lambda: None
        """Called when it is chosen, before it goes on."""
        self.is_done = True
        self.memory: dict[str, Any] = {}
        """Values that program and faults pass to each other; empty at the start of a run."""
        self.start()

    def begin(self, schedule: "Schedule", program: Callable[["Client"], object]) -> None:
        """Run the program until its first operation."""
        self.schedule, self.program = schedule, program
        self.is_done = self.has_crashed = False
        self.own_steps, self.polled_at = 0, -1  # of the others, before another attempt can succeed
        self.attempt_at: int | None = None  # steps of the others when its attempt to acquire began
        self.memory.clear()
        self.baton.release()
        schedule.main.acquire()

    def step(self, what: str, is_ready: Callable[[], bool] = lambda: True) -> None:
        """Stop before an operation until the scheduler chooses this client."""
        assert self.schedule is not None
        if not self.has_crashed:
            self.next, self.is_ready = what, is_ready
            self.schedule.hand_on(self)
        if self.has_crashed:
            raise Stopped

    def pause(self) -> None:
        """Attempt nothing more until another client has done something since the last attempt."""
        self.polled_at, self.attempt_at = self.attempt_at or 0, None

    def crash(self) -> "Client":
        """End the program at the operation before which it stopped."""
        self.has_crashed = True
        return self

    def end(self) -> None:
        """End the thread after its last run."""
        self.schedule = None
        self.baton.release()
        self.join()

    def run(self) -> None:
        """Serve runs until `end`."""
        _local.client = self
        while self.baton.acquire() and (schedule := self.schedule) is not None:
            try:
                self.program(self)
            except Stopped:
                pass
            except BaseException as error:  # noqa: BLE001 - raised in the thread that started the run
                schedule.error = error
            self.is_done = True
            schedule.hand_on(self)


class Schedule:
    """One run: what was chosen at each point."""

    def __init__(
        self, clients: Sequence[Client], faults: Sequence[Fault], prefix: Sequence[Choice]
    ):
        self.clients, self.faults, self.prefix = clients, faults, prefix
        self.main = Semaphore(0)
        self.choices: list[Choice] = []
        self.steps: list[str] = []
        """The trace: who did what."""
        self.is_stuck = False
        """Some client waits, and nothing that could happen would wake it."""
        self.error: BaseException | None = None
        self._is_running = False

    def run(self, program: Callable[[Client], object]) -> None:
        """Run the program on all clients to its end. Raise the first error of a client."""
        try:
            for client in self.clients:
                client.begin(self, program)
            self._is_running = True
            if chosen := self._choose():
                chosen.baton.release()
                self.main.acquire()
        finally:  # a signal may end the run
            self._is_running = False
            for client in self.clients:
                if not client.is_done:
                    client.crash().baton.release()
                while not client.is_done:
                    self.main.acquire()
        if self.error is not None:
            raise self.error

    def hand_on(self, client: Client) -> None:
        """Let the chosen client run, or end the run; a client that is not done then waits."""
        is_done = client.is_done  # no longer, once the next run has begun
        chosen = self._choose() if self._is_running else None
        if chosen is not client or is_done:
            (chosen.baton if chosen else self.main).release()
            if not is_done:
                client.baton.acquire()

    def _choose(self) -> Client | None:
        while self.error is None and (running := [one for one in self.clients if not one.is_done]):
            done = len(self.steps)
            # Faults first: the runs in which they happen early show most flaws.
            ready: list[Client | Fault] = [
                *(one for one in self.faults if one.is_left and one.is_possible()),
                *(
                    one
                    for one in running
                    if done - one.own_steps > one.polled_at and one.is_ready()
                ),
            ]
            if not ready:
                self.is_stuck = True
                break
            place = len(self.choices)
            choice = self.prefix[place] if place < len(self.prefix) else Choice(0, len(ready))
            if choice.of != len(ready):
                self.error = Unrepeatable(f"{len(ready)} choices, not {choice.of}: {self.steps}")
                break
            chosen = ready[choice.number]
            self.choices.append(choice)
            if isinstance(chosen, Fault):
                self.steps.append(chosen.name)
                chosen.is_left = False
                client = chosen.inject()
            else:
                client = chosen
            if isinstance(client, Client):
                return self._resume(client)
        return None

    def _resume(self, client: Client) -> Client:
        if not client.has_crashed:
            if client.attempt_at is None:
                client.attempt_at = len(self.steps) - client.own_steps
            client.own_steps += 1
            self.steps.append(f"{client.label}: {client.next}")
        client.polled_at = -1
        client.on_resume()
        return client


class Result(NamedTuple):
    """The interleavings of a program."""

    runs: int
    is_complete: bool
    """True if these are all of them."""
    violations: int
    first: int
    """The number of the first violating run, 0 if there is none."""
    violation: str
    """The rule that the shortest violating run violates."""
    trace: tuple[str, ...]
    """The steps of that run."""


def search(
    perform: Callable[[list[Choice]], tuple[Schedule, str]],
    limit: int,
    *,
    until_violation: bool = False,
) -> Result:
    """Perform runs with all prefixes of choices, `limit` at most, and return what they violated."""
    runs = violations = first = 0
    shortest: tuple[str, ...] = ()
    violation = ""
    prefix: list[Choice] = []
    while True:
        schedule, broken = perform(prefix)
        runs += 1
        if broken:
            violations += 1
            first = first or runs
            if not shortest or len(schedule.steps) < len(shortest):
                shortest, violation = tuple(schedule.steps), broken
        prefix = schedule.choices
        while prefix and prefix[-1].number + 1 == prefix[-1].of:
            prefix.pop()
        if not prefix or runs == limit or (broken and until_violation):
            return Result(runs, not prefix, violations, first, violation, shortest)
        prefix.append(prefix[-1]._replace(number=prefix.pop().number + 1))
