"""The Django application `waiting_room`."""

from django.apps import AppConfig
from django.db.models.signals import post_delete, post_save
from django.utils.translation import gettext_lazy as _


class WaitingRoomConfig(AppConfig):
    """Waiting rooms of sales."""

    name = "waiting_room"
    verbose_name = _("Waiting rooms")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the purchase ask for admission; forget the rooms of this process after a change."""
        from shop.purchase.admission import gates
        from waiting_room import gate, mail, service
        from waiting_room.models import Room

        gates.append(gate.RoomGate())
        mail.connect_messages()
        post_save.connect(service.clear, sender=Room)
        post_delete.connect(service.clear, sender=Room)
