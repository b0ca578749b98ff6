"""Commands for the test of the worker process."""

from __future__ import annotations

import threading
from typing import Any

from devservers.faults.worker import send_to_parent


class Commands:
    ERRORS = (ZeroDivisionError,)

    def divide(self, a: int, b: int) -> dict[str, Any]:
        return {"result": a // b}

    def announce(self) -> None:
        """Send a line from a thread instead of a reply."""
        threading.Thread(target=send_to_parent, args=[{"announced": True}]).start()

    def crash(self) -> None:
        import os

        os.write(2, b"ZeroDivisionError: of no use\n")
        os._exit(1)
