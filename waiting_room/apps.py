"""The Django application `waiting_room`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class WaitingRoomConfig(AppConfig):
    """Waiting rooms of sales."""

    name = "waiting_room"
    verbose_name = _("Waiting rooms")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Make the purchase ask for admission."""
        from waiting_room.gate import connect_gate

        connect_gate()
