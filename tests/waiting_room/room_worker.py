"""A process of the shop that draws lotteries."""

from __future__ import annotations

from typing import Any

from devservers.faults.worker import WorkerProcess, send_to_parent


class RoomWorker(WorkerProcess):
    """The parent's side."""

    def __init__(self, database_url: str) -> None:
        urls = {"DATABASE_URL": database_url}
        super().__init__("tests.waiting_room.room_worker:RoomCommands", urls)


class RoomCommands:
    """The child's side."""

    def draw(self, room: int, cutoff: int, stop_at: str | None = None) -> dict[str, Any]:
        """Draw; with `stop_at`, wait at that fail point for a line of the parent."""
        import sys

        from locking import failpoints
        from waiting_room import lottery
        from waiting_room.models import Room

        def stop() -> None:
            send_to_parent({"reached": stop_at})
            sys.stdin.readline()

        if stop_at:
            failpoints.arm(stop_at, stop)
        return {"drawn": lottery.draw(room=Room.objects.get(pk=room), cutoff=cutoff)}
