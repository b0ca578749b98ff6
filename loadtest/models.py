"""Load tests that were started from the pages."""

import uuid

from django.conf import settings
from django.db import models
from django.urls import reverse
from django.utils.translation import gettext_lazy as _


class LabRun(models.Model):
    """One load test: what was asked, and the report. Whoever knows its address may read it."""

    class Kind(models.TextChoices):
        """A load test, or a scenario of the gallery."""

        RUN = "run", _("load test")
        SCENARIO = "scenario", _("scenario")

    class State(models.TextChoices):
        """Waiting for a worker, running in one, done, broken off, or stopped by somebody."""

        WAITING = "waiting", _("waiting for a worker")
        RUNNING = "running", _("running")
        DONE = "done", _("done")
        FAILED = "failed", _("broken off")
        STOPPED = "stopped", _("stopped")

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    kind = models.CharField(max_length=10, choices=Kind.choices, default=Kind.RUN)
    plan = models.JSONField(
        help_text=_("The fields of loadtest.load.plan.Plan, or the scenario's name.")
    )
    state = models.CharField(max_length=10, choices=State.choices, default=State.WAITING)
    pace = models.JSONField(default=dict, blank=True, help_text=_("How far it is."))
    is_stopping = models.BooleanField(default=False, help_text=_("Somebody asked it to stop."))
    report = models.JSONField(null=True, blank=True)
    why = models.TextField(blank=True, help_text=_("Why it broke off."))
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL)
    created_at = models.DateTimeField(auto_now_add=True)
    # 1 until it has ended, then NULL: unique, so that there is one at a time in any database.
    slot = models.PositiveSmallIntegerField(null=True, unique=True, default=1, editable=False)

    class Meta:
        verbose_name = _("load test")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.created_at:%Y-%m-%d %H:%M:%S} {self.state}"

    def get_absolute_url(self) -> str:
        """The page that shows it."""
        return reverse("lab-run", args=[self.pk])

    @property
    def is_over(self) -> bool:
        """Whether nothing about it will change any more."""
        return self.state in (self.State.DONE, self.State.FAILED, self.State.STOPPED)
