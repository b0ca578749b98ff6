"""The policy in force and its history, the rows of locks, the runs of jobs."""

from datetime import timedelta

from django.db import models
from django.utils.translation import gettext_lazy as _


class WriteStrategy(models.TextChoices):
    """How the guarded row is written; see docs/reference/glossary.md."""

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
    backend = models.CharField(_("backend"), max_length=50)
    strategy = models.CharField(
        _("write strategy"),
        max_length=20,
        choices=WriteStrategy.choices,
        default=WriteStrategy.CONDITIONAL,
    )
    epoch = models.PositiveIntegerField(_("epoch"), default=1)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.STEADY)
    next_backend = models.CharField(max_length=50, blank=True)
    next_strategy = models.CharField(max_length=20, choices=WriteStrategy.choices, blank=True)
    changed_by = models.CharField(_("changed by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    changed_at = models.DateTimeField(_("changed at"), auto_now_add=True)

    class Meta:
        verbose_name = _("lock policy")
        verbose_name_plural = _("lock policy")
        permissions = [("switch_lock", "Can switch the lock backend")]
        constraints = [models.CheckConstraint(condition=models.Q(pk=1), name="one_lock_policy")]

    def __str__(self) -> str:
        return f"{self.backend} + {self.strategy}, epoch {self.epoch}"


class LockPolicyChange(models.Model):
    """One switch that took place: what an operator looks for afterwards."""

    epoch = models.PositiveIntegerField(_("epoch"))
    from_backend = models.CharField(_("from backend"), max_length=50)
    from_strategy = models.CharField(
        _("from strategy"), max_length=20, choices=WriteStrategy.choices
    )
    to_backend = models.CharField(_("to backend"), max_length=50)
    to_strategy = models.CharField(_("to strategy"), max_length=20, choices=WriteStrategy.choices)
    changed_by = models.CharField(_("changed by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    forced = models.BooleanField(_("forced"), default=False)
    drained_ms = models.PositiveIntegerField(_("drained ms"), default=0)
    changed_at = models.DateTimeField(_("changed at"), auto_now_add=True)

    class Meta:
        verbose_name = _("lock policy change")
        verbose_name_plural = _("lock policy changes")
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


class JobRun(models.Model):
    """One scheduled time of one task; `locking.jobs` alone writes it. Kept as history.

    Times are those of the machine that wrote them.
    """

    class State(models.TextChoices):
        """Due -> running -> done, or due again after a crash or an error; failed is for good."""

        DUE = "due", _("due")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    digest = models.CharField(_("digest"), max_length=32, primary_key=True)
    """Of task, arguments and scheduled time: what makes the run unique."""
    task = models.CharField(_("task"), max_length=200)
    arguments = models.TextField(_("arguments"), blank=True, default="")
    scheduled_for = models.DateTimeField(_("scheduled time"), db_index=True)
    state = models.CharField(_("outcome"), max_length=10, choices=State.choices, default=State.DUE)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    duplicates = models.PositiveIntegerField(_("turned away"), default=0)
    """Messages for it that came while it ran or when it was done."""
    host = models.CharField(_("host"), max_length=150, blank=True, default="")
    started_at = models.DateTimeField(_("started"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    lease_until = models.DateTimeField(_("lease until"))
    """Nobody takes a run that was begun over before this."""
    sent_at = models.DateTimeField(_("sent at"))
    """When a message for it was last sent, so that not every sweep sends one."""
    detail = models.CharField(_("result"), max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("job run")
        verbose_name_plural = _("job runs")
        ordering = ["-scheduled_for", "task"]
        indexes = [models.Index(fields=["state", "lease_until"], name="job_runs_to_resend")]

    def __str__(self) -> str:
        return f"{self.task} @ {self.scheduled_for:%Y-%m-%d %H:%M:%S}"

    @property
    def duration(self) -> timedelta | None:
        """Of the last attempt, once it has ended."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None


class IdempotencyKey(models.Model):
    """The answer to a request that counts once; written in the transaction of its effect."""

    digest = models.CharField(_("digest"), max_length=64, primary_key=True)
    """Of user and key, which makes the pair unique: collations would take others for equal."""
    user = models.CharField(_("user"), max_length=64)
    fingerprint = models.CharField(_("fingerprint"), max_length=64)
    """Digest of what was asked for."""
    status = models.PositiveSmallIntegerField(_("status"))
    headers = models.JSONField(_("headers"))
    body = models.BinaryField()
    created_at = models.DateTimeField(_("answered at"), db_index=True)

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.digest[:12]}… ({self.user})"
