"""Load tests and scenarios that were started from the pages."""

import uuid

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils.translation import gettext_lazy as _


class LabRun(models.Model):
    """One run: its plan and its report. Anyone who has its address may read it."""

    class Kind(models.TextChoices):
        """The kind of experiment."""

        RUN = "run", _("load test")
        SCENARIO = "scenario", _("scenario")

    class State(models.TextChoices):
        """The progress of a run through its Celery worker."""

        WAITING = "waiting", _("waiting for a worker")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("failed")
        STOPPED = "stopped", _("stopped")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.RUN)
    plan = models.JSONField(
        help_text=_("The fields of loadtest.load.plan.Plan, or the scenario's name.")
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    progress = models.JSONField(default=dict, blank=True, help_text=_("Progress of the run."))
    stop_requested = models.BooleanField(default=False, help_text=_("A stop was requested."))
    requested_fault = models.CharField(
        max_length=20, blank=True, default="", help_text=_("A fault to inject.")
    )
    report = models.JSONField(null=True, blank=True)
    error = models.TextField(blank=True, help_text=_("Why it failed."))
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    # 1 until the run has ended, then NULL: unique, so that at most one is active on any database.
    slot = models.PositiveSmallIntegerField(null=True, unique=True, default=1, editable=False)

    class Meta:
        verbose_name = _("load test")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.created_at:%Y-%m-%d %H:%M:%S} {self.state}"

    def get_absolute_url(self) -> str:
        """Return the address of its page."""
        return reverse("lab-run", args=[self.pk])

    @property
    def is_over(self) -> bool:
        """True when the run is done, failed or stopped."""
        return self.state in (self.State.DONE, self.State.FAILED, self.State.STOPPED)


class LabMail(models.Model):
    """An email as it was sent: the lab has no mail server."""

    message = models.OneToOneField("mail.Message", on_delete=models.CASCADE, primary_key=True)
    subject = models.TextField()
    text = models.TextField()
    html = models.TextField()

    def __str__(self) -> str:
        return self.subject
