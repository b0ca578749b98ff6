"""Products, stock rows and the ledger of every change of stock."""

from decimal import Decimal
from functools import partial

from django.contrib import admin
from django.core.validators import MinValueValidator
from django.db import models, transaction
from django.db.models.signals import post_delete
from django.dispatch import receiver
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_lazy as _

from inventory.pictures import new_name
from locking.conf import Mode
from locking.models import Fenced


class WriteStrategy(Mode):
    """Ways of writing the stock row, the modes of the lock policy; see `inventory.stock`."""

    NAIVE = "naive", _("naive: read, compute, write back")
    FENCED = "fenced", _("fenced: claim the row with the token first")
    CONDITIONAL = "conditional", _("conditional: one UPDATE that checks")

    @classmethod
    def title(cls) -> str:
        """Return the label of the choice."""
        return gettext("Write strategy")

    @property
    def warning(self) -> str:
        """Return why naive writes are never safe: only the lock protects them."""
        if self != WriteStrategy.NAIVE:
            return ""
        return gettext(
            "Naive writes allow overselling: only the lock protects the stock, and any lock can "
            "fail. Use them only to demonstrate that."
        )


class Product(models.Model):
    """A product, described in English and Chinese."""

    slug = models.SlugField(_("slug"), unique=True)
    name = models.CharField(_("name"), max_length=120)
    name_zh = models.CharField(_("name (Chinese)"), max_length=120, blank=True)
    description = models.TextField(_("description"), blank=True)
    description_zh = models.TextField(_("description (Chinese)"), blank=True)
    price = models.DecimalField(
        _("price"), max_digits=10, decimal_places=2, validators=[MinValueValidator(Decimal("0.01"))]
    )
    photo = models.FileField(
        _("photo"),
        upload_to=new_name,
        max_length=120,
        blank=True,
        default="",
        db_default="",
        help_text=_("JPEG, PNG or WebP, at most 8 MB and 25 million pixels."),
    )
    is_listed = models.BooleanField(_("is listed"), default=True)

    class Meta:
        ordering = ["name"]
        verbose_name = _("product")
        verbose_name_plural = _("products")
        constraints = [
            models.CheckConstraint(condition=models.Q(price__gte=0), name="product_price_positive")
        ]

    def __str__(self) -> str:
        return self.title

    def _in_language(self, field: str) -> str:
        chinese = (get_language() or "").startswith("zh")
        return str((chinese and getattr(self, f"{field}_zh")) or getattr(self, field))

    @property
    def title(self) -> str:
        """Return the name in the active language."""
        return self._in_language("name")

    @property
    def text(self) -> str:
        """Return the description in the active language."""
        return self._in_language("description")


@receiver(post_delete, sender=Product)
def _delete_photo(instance: Product, **_signal: object) -> None:
    if name := instance.photo.name:
        transaction.on_commit(partial(instance.photo.storage.delete, name))


class Stock(Fenced):
    """The units of one sale. Only `inventory.stock` writes this table."""

    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="stocks", verbose_name=_("product")
    )
    quantity = models.PositiveIntegerField(_("quantity"), default=0)
    stale_writes_refused = models.PositiveIntegerField(_("stale writes refused"), default=0)

    class Meta:
        verbose_name = _("stock")
        verbose_name_plural = _("stock")
        constraints = [
            models.CheckConstraint(
                condition=models.Q(quantity__gte=0), name="stock_quantity_positive"
            )
        ]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product}"


class StockMovement(models.Model):
    """One change of a stock row; never updated. The primary key gives the order of the changes."""

    class Reason(models.TextChoices):
        STOCKED = "stocked", _("stocked")
        RESERVED = "reserved", _("reserved for an order")
        RETURNED = "returned", _("returned by an order")

    stock = models.ForeignKey(
        Stock, on_delete=models.PROTECT, related_name="movements", verbose_name=_("stock")
    )
    delta = models.IntegerField(_("delta"))
    reason = models.CharField(_("reason"), max_length=10, choices=Reason.choices)
    # NULL, not "": the unique constraint below ignores NULLs on every database.
    order_number = models.CharField(_("order number"), max_length=32, blank=True, null=True)  # noqa: DJ001
    quantity_after = models.IntegerField(
        _("quantity after"),
        null=True,
        help_text=_("The quantity that the writer computed; empty if the database computed it."),
    )
    fence_epoch = models.PositiveIntegerField(_("fence epoch"), default=0)
    fence_token = models.BigIntegerField(_("fence token"), default=0)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        ordering = ["pk"]
        verbose_name = _("stock movement")
        verbose_name_plural = _("stock movements")
        constraints = [
            # An order takes its units once and returns them at most once.
            models.UniqueConstraint(
                fields=["order_number", "reason"], name="one_movement_per_order_and_reason"
            )
        ]
        indexes = [
            # An audit reads these columns of every movement of a sale, from the index alone.
            models.Index(
                fields=["stock", "order_number", "reason", "delta"], name="movements_to_audit"
            )
        ]

    def __str__(self) -> str:
        return f"{self.delta:+d} {self.cause}"

    @property
    @admin.display(description=_("reason"))
    def cause(self) -> str:
        """Return the reason; staff also remove units."""
        is_removal = self.reason == self.Reason.STOCKED and self.delta < 0
        return gettext("removed") if is_removal else self.get_reason_display()
