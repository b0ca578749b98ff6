"""Customers, sales and orders."""

import hashlib
import secrets
from datetime import datetime
from decimal import Decimal
from functools import cache
from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.hashers import check_password, make_password
from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from inventory.models import Product, Stock
from inventory.money import check_decimals, default_currency, with_sign
from shop.delivery import DeliveryAddress as DeliveryAddress


class User(AbstractUser):
    """A customer or a member of staff."""

    # Of the customer's last sign-in or choice, for email; empty before.
    language = models.CharField(max_length=10, editable=False, default="", db_default="")

    class Meta(AbstractUser.Meta):  # type: ignore[name-defined, misc]
        # For the admin's filters and search; `username` is its order.
        indexes = [
            models.Index(fields=["is_staff", "username"], name="users_by_staff"),
            models.Index(fields=["is_active", "username"], name="users_by_active"),
            models.Index(fields=["email"], name="users_by_email"),
        ]

    def clean(self) -> None:
        """Store the email address in small letters, by which every database finds it."""
        super().clean()
        self.email = self.email.lower()

    def check_password(self, raw_password: str | None) -> bool:
        """Return True if it is correct, and rehash it if its hash is of an earlier version.

        Django would save the row, which ends purchase tokens as a new password does, and could
        overwrite a password that was set meanwhile.
        """

        def rehash(password: str) -> None:
            new = make_password(password)
            if User.objects.filter(pk=self.pk, password=self.password).update(password=new):
                self.password = new

        return check_password(raw_password, self.password, rehash)


class TokenRevocation(models.Model):
    """The end of a web session, or a change of an account, that ends purchase tokens.

    See `shop.purchase.tokens`.
    """

    # "customer:<id>" or "session:<digest>"; not a foreign key, since both may be deleted.
    subject = models.CharField(max_length=64)
    revoked_at = models.BigIntegerField(help_text="Unix time, in seconds.")

    class Meta:
        # Each process reads the newest rows twice a second: from the index alone, in its order.
        indexes = [models.Index(fields=["revoked_at", "subject"], name="newest_revocations")]

    def __str__(self) -> str:
        return self.subject


class Sale(models.Model):
    """A product at a price for a limited time, with stock of its own."""

    class Phase(models.TextChoices):
        BEFORE = "before", _("Upcoming")
        OPEN = "open", _("Open")
        SOLD_OUT = "sold_out", _("Sold out")
        ENDED = "ended", _("Ended")

    class Fulfilment(models.TextChoices):
        """The order is written before the response (direct) or after it (queued)."""

        DIRECT = "direct", _("Direct: create the order before responding")
        QUEUED = "queued", _("Queued: reserve in Redis, create orders in batches")

    slug = models.SlugField(_("slug"), unique=True)
    product = models.ForeignKey(
        Product, on_delete=models.PROTECT, related_name="sales", verbose_name=_("product")
    )
    stock = models.OneToOneField(
        Stock, on_delete=models.PROTECT, related_name="sale", verbose_name=_("stock")
    )
    price = models.DecimalField(
        _("price"),
        max_digits=10,
        decimal_places=2,
        validators=[MinValueValidator(0), check_decimals],
    )
    limit_per_customer = models.PositiveSmallIntegerField(
        _("limit per customer"),
        default=1,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
    )
    opens_at = models.DateTimeField(_("opens at"), db_index=True)
    closes_at = models.DateTimeField(_("ends at"))
    fulfilment = models.CharField(
        _("order processing"),
        max_length=10,
        choices=Fulfilment.choices,
        default=Fulfilment.DIRECT,
    )
    # False for sales of load tests and those that staff unlisted: only the address leads to them.
    is_listed = models.BooleanField(default=True, editable=False)
    generation = models.PositiveIntegerField(
        default=0,
        editable=False,
        help_text=_("Identifies its state in Redis; every load changes it. 0 before the first."),
    )
    unreserved: int | None = None
    """Units of a queued sale that can be reserved, if `shop.reservations.store` has read them."""

    class Meta:
        ordering = ["opens_at", "pk"]
        verbose_name = _("sale")
        verbose_name_plural = _("sales")
        indexes = [models.Index(fields=["is_listed", "closes_at"], name="sales_by_end")]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(closes_at__gt=models.F("opens_at")),
                name="sale_closes_after_open",
            ),
            models.CheckConstraint(
                condition=models.Q(limit_per_customer__gte=1), name="sale_limit_positive"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.product} · {with_sign(self.price, settings.CURRENCY)}"

    def get_absolute_url(self) -> str:
        """Return the path of the sale page."""
        return reverse("sale", args=[self.slug])

    def phase(self, now: datetime | None = None) -> Phase:
        """Return the phase at `now`, by default the server's time."""
        now = now or timezone.now()
        if now < self.opens_at:
            return self.Phase.BEFORE
        if now >= self.closes_at:
            return self.Phase.ENDED
        return self.Phase.OPEN if self.left > 0 else self.Phase.SOLD_OUT

    @property
    @admin.display(description=_("left"), ordering="stock__quantity")
    def left(self) -> int:
        """Units that could be bought when the sale was read."""
        return self.stock.quantity if self.unreserved is None else self.unreserved

    @property
    def is_queued(self) -> bool:
        """True if orders are written after the response."""
        return self.fulfilment == self.Fulfilment.QUEUED


class CustomerQuota(models.Model):
    """Units that a customer has taken of a sale; enforces the limit without any lock."""

    customer = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    sale = models.ForeignKey(Sale, on_delete=models.CASCADE)
    taken = models.PositiveSmallIntegerField(default=0)
    # Orders that expired unpaid: see UNPAID_LIMIT.
    expired = models.PositiveSmallIntegerField(default=0, db_default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["customer", "sale"], name="one_quota_per_sale")
        ]

    def __str__(self) -> str:
        return f"{self.taken} of {self.sale_id} by {self.customer_id}"


def new_order_number() -> str:
    """Return sixteen random characters."""
    return secrets.token_hex(8).upper()


def digest(key: str) -> str:
    """Return the SHA-256 of an idempotency key, which every database compares alike."""
    return hashlib.sha256(key.encode()).hexdigest()


@cache
def path_of(view: str) -> str:
    """Return the path of a view with "-" as its argument; `reverse` takes 13 microseconds."""
    return reverse(view, args=["-"])


class Order(models.Model):
    """Units promised to a customer at a price fixed when the order was placed."""

    class Status(models.TextChoices):
        """The status of an order; only PENDING and PAID may change."""

        PENDING = "pending", _("Waiting for payment")
        PAID = "paid", _("Paid")
        CANCELLED = "cancelled", _("Cancelled")
        EXPIRED = "expired", _("Expired")
        REFUNDED = "refunded", _("Refunded")

    LIVE = (Status.PENDING, Status.PAID)

    number = models.CharField(_("number"), max_length=32, unique=True, default=new_order_number)
    customer = models.ForeignKey(
        settings.AUTH_USER_MODEL,
        on_delete=models.PROTECT,
        related_name="orders",
        verbose_name=_("customer"),
    )
    sale = models.ForeignKey(
        Sale, on_delete=models.PROTECT, related_name="orders", verbose_name=_("sale")
    )
    quantity = models.PositiveSmallIntegerField(_("quantity"), validators=[MinValueValidator(1)])
    unit_price = models.DecimalField(_("unit price"), max_digits=10, decimal_places=2)
    # Empty: placed by an earlier version, in the currency of the shop.
    currency = models.CharField(
        _("currency"), max_length=3, default=default_currency, db_default="", editable=False
    )
    status = models.CharField(
        _("status"), max_length=10, choices=Status.choices, default=Status.PENDING
    )
    key = models.CharField(_("key"), max_length=64, help_text=_("SHA-256 of the idempotency key."))
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    pay_by = models.DateTimeField(_("pay by"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)
    # The grant under which it was written: see `shop.sales.stock_lock.use_of`.
    lock = models.JSONField(null=True, editable=False)

    class Meta:
        ordering = ["-created_at", "-pk"]
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        constraints = [
            models.UniqueConstraint(fields=["customer", "sale", "key"], name="one_order_per_form"),
            models.CheckConstraint(
                condition=models.Q(quantity__gte=1), name="order_quantity_positive"
            ),
        ]
        indexes = [
            models.Index(fields=["status", "pay_by"], name="orders_to_expire"),
            models.Index(fields=["status", "id"], name="orders_by_status"),
            models.Index(fields=["created_at"], name="orders_by_time"),
            # An audit reads these columns of every order of a sale, from the index alone.
            models.Index(fields=["sale", "status", "number", "quantity"], name="orders_to_audit"),
        ]

    def __str__(self) -> str:
        return self.number

    def get_absolute_url(self) -> str:
        """Return the path of the order page."""
        return path_of("order").replace("-", self.number)

    @property
    def total(self) -> Decimal:
        """Price of all units."""
        return self.unit_price * self.quantity

    @property
    def receipt(self) -> dict[str, Any]:
        """The constant part as JSON, so that a repeated purchase gets an equal response."""
        return {
            "number": self.number,
            "sale": self.sale.slug,
            "quantity": self.quantity,
            "unit_price": str(self.unit_price),
            "total": str(self.total),
            "currency": self.currency or settings.CURRENCY,
            "pay_by": self.pay_by.isoformat(timespec="milliseconds"),
            "url": self.get_absolute_url(),
            "lock": self.lock,
        }

    @property
    def is_payable(self) -> bool:
        """True if the order can still be paid."""
        return self.status == self.Status.PENDING and timezone.now() < self.pay_by


class RejectedReservation(models.Model):
    """A reservation of a queued sale that became no order, with the reason. Never changed.

    The customer has seen this outcome; it stays valid if Redis loses or restores its data.
    """

    class Reason(models.TextChoices):
        SOLD_OUT = "sold_out", _("sold out when the order was saved")
        LIMIT = "limit", _("limit per customer exceeded")
        FAILED = "failed", _("could not be saved")

    number = models.CharField(_("number"), max_length=32, unique=True)
    sale = models.ForeignKey(
        Sale, on_delete=models.PROTECT, related_name="rejected", verbose_name=_("sale")
    )
    # Not a foreign key: a deleted customer may be the reason of the rejection.
    customer_id = models.BigIntegerField(_("customer id"), null=True, db_index=True)
    quantity = models.PositiveSmallIntegerField(_("quantity"), default=0)
    reason = models.CharField(_("reason"), max_length=10, choices=Reason.choices)
    detail = models.TextField(_("detail"), blank=True)
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)

    class Meta:
        ordering = ["-pk"]
        verbose_name = _("rejected reservation")
        verbose_name_plural = _("rejected reservations")

    def __str__(self) -> str:
        return f"{self.number}: {self.get_reason_display()}"


class Payment(models.Model):
    """An attempt to pay an order through the payment provider, which reports in a webhook.

    started -> declined | timed out
    started, declined, timed out -> approved      if the order can still be paid
    started, declined, timed out -> refunding     if it cannot
    approved -> refunding                         if staff refund the order
    refunding -> refunded                         once the provider has done it
    """

    class Status(models.TextChoices):
        STARTED = "started", _("Waiting for the payment provider")
        APPROVED = "approved", _("Approved")
        DECLINED = "declined", _("Declined")
        TIMED_OUT = "timed_out", _("Timed out")
        REFUNDING = "refunding", _("Being refunded")
        REFUNDED = "refunded", _("Refunded")

    UNPAID = (Status.STARTED, Status.DECLINED, Status.TIMED_OUT)
    RETURNED = (Status.REFUNDING, Status.REFUNDED)

    reference = models.CharField(
        _("reference"), max_length=32, unique=True, default=new_order_number
    )
    order = models.ForeignKey(
        Order, on_delete=models.PROTECT, related_name="payments", verbose_name=_("order")
    )
    amount = models.DecimalField(_("amount"), max_digits=12, decimal_places=2)
    currency = models.CharField(
        _("currency"), max_length=3, default=default_currency, db_default="CNY"
    )
    provider_id = models.CharField(
        _("provider's id"), max_length=100, db_index=True, blank=True, default="", db_default=""
    )
    status = models.CharField(
        _("status"), max_length=10, choices=Status.choices, default=Status.STARTED
    )
    created_at = models.DateTimeField(_("created at"), auto_now_add=True)
    answer_by = models.DateTimeField(_("respond by"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)
    refund_started_at = models.DateTimeField(_("refund started at"), null=True, blank=True)
    refunded_at = models.DateTimeField(_("refunded at"), null=True, blank=True)

    class Meta:
        ordering = ["-pk"]  # a clock may be set back
        verbose_name = _("payment")
        verbose_name_plural = _("payments")
        # Few have started: the job that times them out reads them all.
        indexes = [models.Index(fields=["status", "id"], name="payments_by_status")]

    def __str__(self) -> str:
        return self.reference

    @property
    def is_open(self) -> bool:
        """True if the payment provider may still decide."""
        return self.status == self.Status.STARTED and timezone.now() < self.answer_by

    @property
    def outcome(self) -> str:
        """The status; TIMED_OUT also as soon as the time for a callback is over."""
        late = self.status == self.Status.STARTED and not self.is_open
        return self.Status.TIMED_OUT if late else self.status
