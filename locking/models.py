"""The policy in force and its history."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Discipline(models.TextChoices):
    """How the guarded row is written; see docs/glossary.md."""

    NAIVE = "naive", _("naive: read, compute, write back")
    FENCED = "fenced", _("fenced: claim the row with the token first")
    CONDITIONAL = "conditional", _("conditional: one UPDATE that checks")


class LockPolicy(models.Model):
    """One row: which lock guards the stock, and how stock is written. For policy.py only."""

    class State(models.TextChoices):
        """Draining: no new holder until those of the old backend are gone."""

        STEADY = "steady", _("steady")
        DRAINING = "draining", _("draining")

    # Not AUTO_INCREMENT, on which MariaDB allows no check.
    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    backend = models.CharField(max_length=50)
    discipline = models.CharField(
        max_length=20, choices=Discipline.choices, default=Discipline.CONDITIONAL
    )
    epoch = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=10, choices=State.choices, default=State.STEADY)
    next_backend = models.CharField(max_length=50, blank=True)
    next_discipline = models.CharField(max_length=20, choices=Discipline.choices, blank=True)
    changed_by = models.CharField(max_length=150, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    changed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("lock policy")
        verbose_name_plural = _("lock policy")
        permissions = [("switch_lock", "Can switch the lock backend")]
        constraints = [models.CheckConstraint(condition=models.Q(pk=1), name="one_lock_policy")]

    def __str__(self) -> str:
        return f"{self.backend} + {self.discipline}, epoch {self.epoch}"


class LockPolicyChange(models.Model):
    """One switch that took place: what an operator looks for afterwards."""

    epoch = models.PositiveIntegerField()
    from_backend = models.CharField(max_length=50)
    from_discipline = models.CharField(max_length=20, choices=Discipline.choices)
    to_backend = models.CharField(max_length=50)
    to_discipline = models.CharField(max_length=20, choices=Discipline.choices)
    changed_by = models.CharField(max_length=150, blank=True)
    reason = models.CharField(max_length=200, blank=True)
    forced = models.BooleanField(default=False)
    drained_ms = models.PositiveIntegerField(default=0)
    changed_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        verbose_name = _("lock policy change")
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.from_backend} -> {self.to_backend} (epoch {self.epoch})"


class LockRow(models.Model):
    """One lock of the database backend, held or idle; `locking.backends.database` alone writes it.

    Times are microseconds on the database's clock since 1970.
    """

    digest = models.CharField(max_length=32, primary_key=True)
    """Of the name: collations would take names for equal that are not."""
    name = models.CharField(max_length=200)
    owner = models.CharField(max_length=150, blank=True, default="")
    lock_count = models.PositiveIntegerField(default=0)
    token = models.BigIntegerField(default=0)
    ttl = models.BigIntegerField(default=0)
    expires_at = models.BigIntegerField(default=0)
    waiter = models.CharField(max_length=150, blank=True, default="")
    """Who takes it next, where the database cannot queue waiters, until `waiter_until`."""
    waiter_until = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("lock row")
        verbose_name_plural = _("lock rows")

    def __str__(self) -> str:
        return self.name
