"""The Django application `waiting_room`."""

import re
from typing import TYPE_CHECKING

from django.apps import AppConfig
from django.db.models.signals import post_delete, post_save
from django.utils import translation
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

if TYPE_CHECKING:
    from shop.models import Sale

GUESTS = gettext_noop("This is a demo: simulated customers wait with you, but they don't buy.")


class WaitingRoomConfig(AppConfig):
    """Waiting rooms of sales."""

    name = "waiting_room"
    verbose_name = _("Waiting rooms")

    def ready(self) -> None:
        """Make the purchase ask for admission, and one response serve all who poll.

        Forget the rooms of this process after a change.
        """
        from shop.platform.shared_pages import SharedPage, shared_pages
        from shop.purchase.admission import gates
        from waiting_room import gate, mail, service
        from waiting_room.models import Room

        gates.append(gate.RoomGate())
        polled = r"/sales/[-\w]+/room/(status|record|positions-[0-9a-f]{2})\.json"
        shared_pages.append(SharedPage(re.compile(polled, re.ASCII), is_for_all=True))
        mail.connect_messages()
        post_save.connect(service.clear, sender=Room)
        post_delete.connect(service.clear, sender=Room)

    def seed(self, *, sale: "Sale", mode: str, inlet: int) -> None:
        """Create the room of a demo's sale, which `waiting_room.tasks.fill` fills."""
        from waiting_room.models import Room

        with translation.override("zh-hans"):
            texts = {"message": GUESTS, "message_zh": translation.gettext(GUESTS)}
        Room.objects.create(sale=sale, mode=mode, inlet_per_minute=inlet, **texts)
