"""The waiting room of a sale: its mode, its secrets, and what staff have set."""

import hashlib
import secrets

from django.conf import settings
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from shop.models import Sale

MAX_INLET = 1_000_000
"""People per minute; with more, a sale needs no waiting room."""
MAX_MESSAGE = 200


def new_seed() -> str:
    """Return 32 random bytes in hexadecimal."""
    return secrets.token_hex(32)


def new_generation() -> str:
    """Return the random name of a new state in Redis."""
    return secrets.token_hex(4)


def default_inlet() -> int:
    """Return WAITING_ROOM_INLET_PER_MINUTE."""
    return int(settings.WAITING_ROOM_INLET_PER_MINUTE)


class Room(models.Model):
    """The waiting room of one sale. Its places are in Redis: see `waiting_room.store`."""

    class Mode(models.TextChoices):
        """The order in which customers are admitted."""

        NONE = "none", _("No waiting room")
        ARRIVAL = "arrival", _("First come, first served")
        LOTTERY = "lottery", _("Lottery among those present at the opening")

    class Reason(models.TextChoices):
        """The last change by staff that made customers wait longer."""

        PAUSED = "paused", _("Admission was paused")
        SLOWED = "slowed", _("Fewer people are admitted per minute")

    sale = models.OneToOneField(
        Sale, on_delete=models.CASCADE, related_name="room", verbose_name=_("sale")
    )
    mode = models.CharField(_("mode"), max_length=10, choices=Mode.choices, default=Mode.NONE)
    # Secret until the lottery is drawn; it decides every position.
    seed = models.CharField(max_length=64, default=new_seed, editable=False)
    # Secret for ever: it keeps the public tickets from being traced back to accounts.
    ticket_key = models.CharField(max_length=64, default=new_seed, editable=False)
    generation = models.CharField(max_length=8, default=new_generation, editable=False)
    inlet_per_minute = models.PositiveIntegerField(
        _("people admitted per minute"),
        default=default_inlet,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_INLET)],
    )
    is_paused = models.BooleanField(_("paused"), default=False)
    message = models.CharField(_("message"), max_length=MAX_MESSAGE, blank=True, default="")
    message_zh = models.CharField(
        _("message in Chinese"), max_length=MAX_MESSAGE, blank=True, default=""
    )
    reason = models.CharField(
        max_length=10, choices=Reason.choices, blank=True, default="", editable=False
    )
    root = models.CharField(max_length=64, blank=True, default="", editable=False)
    # Public: seed, commitment, root, time and reason of each reset, oldest first.
    earlier = models.JSONField(null=True, blank=True, default=list, editable=False)
    # When the generation was created in Redis: from then on, a missing state is a lost one.
    opened_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        verbose_name = _("waiting room")
        verbose_name_plural = _("waiting rooms")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(inlet_per_minute__gte=1), name="room_inlet_positive"
            )
        ]

    def __str__(self) -> str:
        return _("%(sale)s: %(mode)s") % {"sale": self.sale, "mode": self.get_mode_display()}

    @property
    def commitment(self) -> str:
        """The SHA-256 of the seed, public from the creation of the room."""
        return hashlib.sha256(self.seed.encode()).hexdigest()
