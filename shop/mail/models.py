"""Messages to customers, and the reminders that they asked for."""

from django.conf import settings
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class Message(models.Model):
    """One email, sent at most once.

        waiting -> sending -> sent
        sending -> waiting | failed     the server refused it: for now, or too often

    A waiting message whose text is no longer true is deleted, and written again if it becomes true.
    A message stays in `sending` if its process died, or its connection broke, before the server's
    reply was noted: it may have been sent, so it is not sent again.
    """

    class State(models.TextChoices):
        WAITING = "waiting", _("Waiting to be sent")
        SENDING = "sending", _("Sending, or outcome unknown")
        SENT = "sent", _("Sent")
        FAILED = "failed", _("Failed")

    kind = models.CharField(_("kind"), max_length=10)
    about = models.BigIntegerField(_("about"))  # id of an order, payment or sale
    customer = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, verbose_name=_("customer")
    )
    state = models.CharField(
        _("status"), max_length=10, choices=State.choices, default=State.WAITING
    )
    attempts = models.PositiveSmallIntegerField(_("attempts"), default=0)
    due_at = models.DateTimeField(_("not before"), default=timezone.now)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True, db_index=True)

    class Meta:
        verbose_name = pgettext_lazy("messages", "email")
        verbose_name_plural = pgettext_lazy("messages", "emails")
        constraints = [
            models.UniqueConstraint(fields=["kind", "about", "customer"], name="one_message")
        ]
        indexes = [models.Index(fields=["state", "id"], name="messages_by_state")]

    def __str__(self) -> str:
        return f"{self.kind} {self.about} to customer {self.customer_id}"


class Reminder(models.Model):
    """A customer wants a message when a sale is about to open, and at their turn to buy."""

    sale = models.ForeignKey("shop.Sale", on_delete=models.CASCADE)
    customer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["sale", "customer"], name="one_reminder")]

    def __str__(self) -> str:
        return f"sale {self.sale_id} for customer {self.customer_id}"
