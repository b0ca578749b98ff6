"""Named places in the code at which fault tests and the lab inject faults or observe.

A random pause proves nothing: a fault has to be injected at the very instruction that it concerns.
The code calls `reach("report.read", report=...)` there. Nothing happens unless a test or the
lab has armed that name or registered an observer in this process.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Observer = Callable[[str, Mapping[str, Any]], object]

_hooks: dict[str, Callable[[], object]] = {}
_observers: tuple[Observer, ...] = ()


def reach(name: str, **facts: Any) -> None:
    """Pass the name and its facts to all observers, then call the hook armed for the name."""
    for observer in _observers:
        observer(name, facts)
    hook = _hooks.get(name)
    if hook is not None:
        hook()


def arm(name: str, hook: Callable[[], object]) -> None:
    """Call `hook` whenever the code reaches `name`, until `disarm`."""
    _hooks[name] = hook


def disarm(name: str) -> None:
    """Remove the hook of `name`, if there is one."""
    _hooks.pop(name, None)


@contextmanager
def armed(name: str, hook: Callable[[], object]) -> Iterator[None]:
    """Arm `name` for the length of a block."""
    arm(name, hook)
    try:
        yield
    finally:
        disarm(name)


def add_observer(observer: Observer) -> None:
    """Call `observer(name, facts)` whenever the code reaches any name, until `remove_observer`."""
    global _observers
    _observers = (*_observers, observer)


def remove_observer(observer: Observer) -> None:
    """Remove an observer."""
    global _observers
    _observers = tuple(other for other in _observers if other != observer)
