"""The delivery address of an order.

A table of its own: a purchase writes nothing for it.
"""

from django.core.validators import RegexValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

PHONE = RegexValidator(r"^\+?[0-9][0-9 ()./-]{4,}\Z", _("Enter a phone number."))
POSTCODE = RegexValidator(r"^[A-Za-z0-9][A-Za-z0-9 -]+\Z", _("Enter a postcode."))
ONE_LINE = RegexValidator(r"^[^\x00-\x1f\x7f\u2028\u2029]+\Z", _("Enter one line of text."))


def line(label: object, length: int) -> models.CharField:  # type: ignore[type-arg]
    """Return a required field for one line of text."""
    return models.CharField(label, max_length=length, validators=[ONE_LINE])  # type: ignore[arg-type]


class DeliveryAddress(models.Model):
    """The address to send an order to; its customer may change it until it is shipped."""

    order = models.OneToOneField(
        "shop.Order",
        on_delete=models.CASCADE,
        primary_key=True,
        related_name="address",
        verbose_name=_("order"),
    )
    name = line(_("recipient"), 100)
    phone = models.CharField(_("phone"), max_length=30, validators=[PHONE])
    street = line(_("street and number"), 200)
    city = line(_("city and region"), 100)
    postcode = models.CharField(_("postcode"), max_length=12, blank=True, validators=[POSTCODE])
    country = models.CharField(
        _("country"), max_length=60, blank=True, validators=[ONE_LINE], help_text=_("If abroad.")
    )
    # Each change adds one: staff cannot mark as shipped what they printed before a change.
    revision = models.PositiveIntegerField(default=1, editable=False)
    shipped_at = models.DateTimeField(_("shipped at"), null=True, editable=False)

    LINES = ("name", "phone", "street", "city", "postcode", "country")
    """What customers fill in."""

    class Meta:
        verbose_name = _("delivery address")
        verbose_name_plural = _("delivery addresses")
        indexes = [
            models.Index(fields=["shipped_at"], name="addresses_by_shipping"),
            models.Index(fields=["phone"], name="addresses_by_phone"),
            models.Index(fields=["name"], name="addresses_by_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name}, {self.city}"
