"""Named places in the code where a fault test or the lab may step in.

A random pause proves nothing: a fault has to strike at the very instruction it is about. The code
calls `reach("stock.read")` there; nothing happens unless a test or the lab has armed that name in
this process, which costs one dictionary look-up.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_hooks: dict[str, Callable[[], object]] = {}


def reach(name: str) -> None:
    """Say that the code has come to `name`; runs the hook armed there, if any."""
    hook = _hooks.get(name)
    if hook is not None:
        hook()


def arm(name: str, hook: Callable[[], object]) -> None:
    """Run `hook` whenever the code reaches `name`, until `disarm`."""
    _hooks[name] = hook


def disarm(name: str) -> None:
    """Forget the hook at `name`."""
    _hooks.pop(name, None)


@contextmanager
def armed(name: str, hook: Callable[[], object]) -> Iterator[None]:
    """Arm `name` for the length of a block."""
    arm(name, hook)
    try:
        yield
    finally:
        disarm(name)
