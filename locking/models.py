"""Tables of the lock policy, the database locks, the job runs and the idempotency keys."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _


class Fenced(models.Model):
    """Base class of rows that keep the newest fence of their writers, and refuse older ones."""

    fence_epoch = models.PositiveIntegerField(_("fence epoch"), default=0)
    fence_token = models.BigIntegerField(_("fence token"), default=0)

    class Meta:
        abstract = True

    @staticmethod
    def not_newer(epoch: int, token: int | None) -> models.Q:
        """Return the condition that a row has no newer fence; without a token, no newer epoch."""
        if token is None:
            return models.Q(fence_epoch__lte=epoch)
        return models.Q(fence_epoch__lt=epoch) | models.Q(fence_epoch=epoch, fence_token__lte=token)

    def fenced_update(self, fence: Sequence[int] | int, **values: Any) -> bool:
        """Write values and the fence (`lease.fence` or a token) in one UPDATE; False if stale."""
        epoch, token = (0, fence) if isinstance(fence, int) else fence
        rows = type(self)._base_manager.using(self._state.db)
        values |= {"fence_epoch": epoch, "fence_token": token}
        if not rows.filter(self.not_newer(epoch, token), pk=self.pk).update(**values):
            return False
        for name, value in values.items():
            if hasattr(value, "resolve_expression"):  # `save` would apply it a second time
                field: Any = self._meta.get_field(name)
                self.__dict__.pop(field.attname, None)  # it is read when it is used
            else:
                setattr(self, name, value)
        return True


class LockPolicy(models.Model):
    """The active backend and mode, in one row; only `locking.policy` writes it."""

    class State(models.TextChoices):
        """While draining, the new backend grants only what the old one no longer holds."""

        STEADY = "steady", _("steady")
        DRAINING = "draining", _("draining")

    # Not AUTO_INCREMENT, because MariaDB allows no check constraint on such a column.
    id = models.PositiveSmallIntegerField(primary_key=True, default=1, editable=False)
    backend = models.CharField(_("backend"), max_length=50)
    # The columns are named as before, so that old processes read them during an upgrade.
    mode = models.CharField(_("mode"), max_length=20, blank=True, db_column="strategy")
    epoch = models.PositiveIntegerField(_("epoch"), default=1)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, default=State.STEADY)
    next_backend = models.CharField(max_length=50, blank=True)
    next_mode = models.CharField(max_length=20, blank=True, db_column="next_strategy")
    still_held = models.JSONField(blank=True, null=True)
    """Names that are still held in the old backend, while all others use the next one; None until
    every process knows of the switch."""
    changed_by = models.CharField(_("changed by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    changed_at = models.DateTimeField(_("changed at"), auto_now_add=True)
    """For people, and to tell one switch from another; no wait is measured by it."""

    class Meta:
        verbose_name = _("lock policy")
        verbose_name_plural = _("lock policy")
        permissions = [("switch_lock", "Can switch the lock backend")]
        constraints = [models.CheckConstraint(condition=models.Q(pk=1), name="one_lock_policy")]

    def __str__(self) -> str:
        return f"{self.active}, epoch {self.epoch}"

    @property
    def active(self) -> str:
        """Return the active backend, with the mode if the project has modes."""
        return joined(self.backend, self.mode)

    @property
    def upcoming(self) -> str:
        """Return the backend and mode of the switch in progress, empty without one."""
        return joined(self.next_backend, self.next_mode)


class LockPolicyChange(models.Model):
    """One completed switch, kept as history."""

    epoch = models.PositiveIntegerField(_("epoch"))
    from_backend = models.CharField(_("from backend"), max_length=50)
    from_mode = models.CharField(_("from mode"), max_length=20, db_column="from_strategy")
    to_backend = models.CharField(_("to backend"), max_length=50)
    to_mode = models.CharField(_("to mode"), max_length=20, db_column="to_strategy")
    changed_by = models.CharField(_("changed by"), max_length=150, blank=True)
    reason = models.CharField(_("reason"), max_length=200, blank=True)
    forced = models.BooleanField(_("forced"), default=False)
    drained_ms = models.PositiveIntegerField(_("drain time (ms)"), default=0)
    changed_at = models.DateTimeField(_("changed at"), auto_now_add=True)

    class Meta:
        verbose_name = _("lock policy change")
        verbose_name_plural = _("lock policy changes")
        ordering = ["-pk"]

    def __str__(self) -> str:
        return f"{self.epoch}: {self.old} → {self.new}"

    @property
    def old(self) -> str:
        """Return the backend and mode that were active before."""
        return joined(self.from_backend, self.from_mode)

    @property
    def new(self) -> str:
        """Return the backend and mode that became active."""
        return joined(self.to_backend, self.to_mode)


def joined(backend: str, mode: str) -> str:
    """Return "redis + conditional", or the backend alone if the project has no modes."""
    return f"{backend} + {mode}" if mode else backend


class LockRow(models.Model):
    """One lock of the database backend, held or free; only that backend writes it.

    Times are microseconds since 1970 on the database's clock.
    """

    digest = models.CharField(max_length=32, primary_key=True)
    """Digest of the name, because collations treat some different names as equal."""
    name = models.CharField(max_length=200)
    owner = models.CharField(max_length=150, blank=True, default="")
    lock_count = models.PositiveIntegerField(default=0)
    token = models.BigIntegerField(default=0)
    ttl = models.BigIntegerField(default=0)
    expires_at = models.BigIntegerField(default=0)
    waiter = models.CharField(max_length=150, blank=True, default="")
    """Owner that may acquire it next until `waiter_until`, if the database has no queue."""
    waiter_until = models.BigIntegerField(default=0)

    class Meta:
        verbose_name = _("lock row")
        verbose_name_plural = _("lock rows")

    def __str__(self) -> str:
        return self.name


class HeldLock(LockRow):
    """A lock that is held now, for its page in the admin; `pk` is the backend's alias and the name.

    A proxy without rows of its own: the page asks the backends.
    """

    class Meta:
        proxy = True
        default_permissions = ("view",)
        permissions = [("release_lock", "Can break a lock that another caller holds")]
        verbose_name = _("held lock")
        verbose_name_plural = _("held locks")


class JobRun(models.Model):
    """One scheduled time of one task, kept as history; only `locking.jobs` writes it.

    Times are on the clock of the machine that wrote them.
    """

    class State(models.TextChoices):
        """From due over running to done; due again after a crash or an error; failed is final."""

        DUE = "due", _("due")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")

    digest = models.CharField(_("digest"), max_length=32, primary_key=True)
    """Digest of what identifies the run: task, arguments and scheduled time, or the message."""
    task = models.CharField(_("task"), max_length=200)
    arguments = models.TextField(_("arguments"), blank=True, default="")
    options = models.JSONField(_("options"), blank=True, null=True)
    """Queue, priority, expiry and headers, with which the run is sent again."""
    scheduled_for = models.DateTimeField(_("scheduled time"), db_index=True)
    state = models.CharField(_("outcome"), max_length=10, choices=State.choices, default=State.DUE)
    attempts = models.PositiveIntegerField(_("attempts"), default=0)
    duplicates = models.PositiveIntegerField(_("refused duplicates"), default=0)
    """Messages that arrived while the run was in progress or after it was done."""
    host = models.CharField(_("host"), max_length=150, blank=True, default="")
    started_at = models.DateTimeField(_("started"), null=True)
    ended_at = models.DateTimeField(_("ended"), null=True)
    lease_until = models.DateTimeField(_("lease until"))
    """Time before which no other worker takes over a run in progress."""
    sent_at = models.DateTimeField(_("sent at"))
    """Time of the last message for the run, so that not every sweep sends one."""
    detail = models.CharField(_("result"), max_length=500, blank=True, default="")

    class Meta:
        verbose_name = _("job run")
        verbose_name_plural = _("job runs")
        ordering = ["-scheduled_for", "task"]
        indexes = [
            models.Index(fields=["state", "lease_until"], name="job_runs_to_resend"),
            models.Index(fields=["task", "scheduled_for"], name="job_runs_of_a_task"),
        ]

    def __str__(self) -> str:
        return f"{self.task} @ {self.scheduled_for:%Y-%m-%d %H:%M:%S}"

    @property
    def duration(self) -> timedelta | None:
        """Duration of the last attempt, or None if it has not ended."""
        return self.ended_at - self.started_at if self.ended_at and self.started_at else None


class IdempotencyKey(models.Model):
    """The stored response of an idempotent request, written in the transaction of its effect."""

    digest = models.CharField(_("digest"), max_length=64, primary_key=True)
    """Digest of user and key, because collations treat some different keys as equal."""
    user = models.CharField(_("user"), max_length=64, db_index=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64)
    """Digest of the request."""
    status = models.PositiveSmallIntegerField(_("status"))
    headers = models.JSONField(_("headers"))
    body = models.BinaryField()
    created_at = models.DateTimeField(_("stored at"), db_index=True)

    class Meta:
        verbose_name = _("idempotency key")
        verbose_name_plural = _("idempotency keys")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.digest[:12]}… ({self.user})"
