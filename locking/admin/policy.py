"""The pages of the lock policy with its switch and history, of stored responses and job runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from locking import policy
from locking.admin.base import LargeTable, ReadOnlyAdmin, confirm
from locking.conf import mode_warning, modes
from locking.exceptions import LockError
from locking.handler import locks
from locking.models import IdempotencyKey, JobRun, LockPolicy, LockPolicyChange, joined


def _shown(names: Iterable[str]) -> list[str]:
    """Return the names of fields, without those of the mode if the project has no modes."""
    return [name for name in names if modes().values or not name.endswith("mode")]


def _choice(alias: str) -> tuple[str, str]:
    name = LockPolicyAdmin.named(alias, "")
    return alias, f"{name} – {gettext(locks[alias].capabilities.summary)}"


class SwitchForm(forms.ModelForm):  # type: ignore[type-arg]
    """The backend and mode to activate; `locking.policy` carries the switch out."""

    backend = forms.ChoiceField(label=_("Lock backend"), choices=lambda: list(map(_choice, locks)))
    mode = forms.ChoiceField(choices=lambda: modes().choices)
    reason = forms.CharField(label=_("Reason"), max_length=200)
    step = forms.ChoiceField(
        label=_("How"),
        choices=[
            ("drain", _("Switch safely: no lock moves while it is held")),
            ("force", _("Switch now: only if the old backend is down")),
            ("cancel", _("Cancel the switch in progress")),
        ],
        initial="drain",
        widget=forms.RadioSelect({"class": "radiolist"}),
    )

    class Meta:
        model = LockPolicy
        fields = ("backend", "mode")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["mode"].label = modes().title()
        self.fields = {name: self.fields[name] for name in _shown(self.fields)}
        self.initial["reason"] = ""  # the stored reason belongs to the last switch
        step: Any = self.fields.get("step")
        if step and not self.is_bound and not self.instance.next_backend:
            step.choices = step.choices[:-1]

    def clean(self) -> dict[str, Any]:
        """Refuse to switch to what is active: callers would wait for nothing."""
        sent, row = self.cleaned_data, policy.stored_policy()
        goal = (sent.get("backend"), sent.get("mode", ""))
        if self.data.get("step") in ("drain", "force") and goal == (row.backend, row.mode):
            problem = _("%s is already active. Nothing was changed.")
            raise forms.ValidationError(problem % LockPolicyAdmin.named(row.backend, row.mode))
        return sent


@admin.register(LockPolicy)
class LockPolicyAdmin(ReadOnlyAdmin):
    """The page of the lock policy; switching needs the permission `locking.switch_lock`."""

    form = SwitchForm
    named: Callable[..., str] = staticmethod(joined)
    """How the pages name a backend and a mode; a project may have words of its own."""
    readonly_fields = ("active", "epoch", "state", "changed_by", "changed_at")

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may switch, which can disable the protection by locks."""
        return bool(request.user.is_active and request.user.has_perm("locking.switch_lock"))

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may see the policy or switch it."""
        return self.has_change_permission(request) or super().has_view_permission(request, obj)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Return the fieldsets, without the form for users who may not switch."""
        active = {"fields": ("active", "epoch", "state", "changed_by", "changed_at")}
        switch = {"fields": _shown(("backend", "mode", "reason", "step"))}
        may_switch = self.has_change_permission(request, obj)
        return [(None, active), *([(_("Switch to"), switch)] if may_switch else [])]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """Redirect to the page of the only row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        policy.current()  # creates the row on first use
        return HttpResponseRedirect(self._page())

    @transaction.non_atomic_requests
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the policy, or switch it.

        Not with `save_model` or under ATOMIC_REQUESTS, in a transaction: other processes would not
        see the policy drain before its end, and SQLite would block their writes meanwhile.
        """
        policy.finish_overdue_switch()
        if request.method == "POST":
            if not self.has_change_permission(request):
                raise PermissionDenied
            form = SwitchForm(request.POST)
            if form.is_valid():
                wanted, step = form.instance, form.cleaned_data["step"]
                warning = mode_warning(wanted.mode)
                if step == "force" or (step == "drain" and warning):
                    template, name = "admin/locking/lockpolicy/confirm.html", wanted.backend
                    shown = {"goal": wanted.active, "step": step, "warning": warning}
                    if asked := confirm(request, self, template, name=name, **shown):
                        return asked
                self._switch(request, **form.cleaned_data)
                return HttpResponseRedirect(self._page())
        shown = {"subtitle": self.active(policy.stored_policy()), **(extra_context or {})}
        return super().change_view(request, object_id, form_url, shown)

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: Any = None
    ) -> HttpResponse:
        """Redirect to the switches, wherever they were made."""
        return HttpResponseRedirect(reverse("admin:locking_lockpolicychange_changelist"))

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Do nothing; `change_view` switches the policy."""

    def _switch(self, request: HttpRequest, *, step: str, **wanted: Any) -> None:
        by = request.user.get_username()
        try:
            if step == "cancel":
                cancelled = policy.cancel_switch()
                text = _("Cancelled.") if cancelled else _("No switch is in progress.")
                self.message_user(request, text)
                return
            now = policy.switch(changed_by=by, force=step == "force", **wanted)
        except LockError as error:
            self.message_user(request, str(error), messages.ERROR)
            return
        self.log_change(request, now, f"{self.active(now)} “{wanted['reason']}”")
        self.message_user(request, _("Active lock: %s") % self.active(now), messages.SUCCESS)

    def _page(self) -> str:
        return reverse("admin:locking_lockpolicy_change", args=[1])

    @admin.display(description=_("active"))
    def active(self, row: LockPolicy) -> str:
        """Return the active backend and mode, and those of the switch in progress."""
        states = (row.backend, row.mode), (row.next_backend, row.next_mode)
        return " → ".join(str(self.named(*state)) for state in states if state[0])


@admin.register(LockPolicyChange)
class LockPolicyChangeAdmin(ReadOnlyAdmin):
    """The completed switches."""

    list_display = (
        "epoch",
        "changed_at",
        "before",
        "after",
        "changed_by",
        "reason",
        "forced",
        "drained_ms",
    )
    list_filter = ("forced", "to_backend", "changed_at")
    search_fields = ("changed_by", "reason")

    fields = readonly_fields = list_display

    @admin.display(description=_("before"))
    def before(self, change: LockPolicyChange) -> str:
        """Return the backend and mode that were active before."""
        return LockPolicyAdmin.named(change.from_backend, change.from_mode)

    @admin.display(description=_("after"))
    def after(self, change: LockPolicyChange) -> str:
        """Return the backend and mode that became active."""
        return LockPolicyAdmin.named(change.to_backend, change.to_mode)


@admin.register(IdempotencyKey)
class IdempotencyKeyAdmin(LargeTable, ReadOnlyAdmin):
    """The stored responses of idempotent requests."""

    list_display = ("digest", "user", "status", "created_at")
    list_filter = ("created_at",)
    search_fields = ("digest", "user")
    ordering = ("-created_at", "-pk")
    fields = (*list_display, "fingerprint", "headers", "text")
    readonly_fields = ("text",)

    @admin.display(description=_("body"))
    def text(self, row: IdempotencyKey) -> str:
        """Return the body as text."""
        return bytes(row.body).decode(errors="replace")


@admin.register(JobRun)
class JobRunAdmin(LargeTable, ReadOnlyAdmin):
    """The runs of jobs; a scheduled task deletes old ones."""

    list_display = (
        "scheduled_for",
        "task",
        "state",
        "took",
        "detail",
        "attempts",
        "duplicates",
        "started_at",
        "host",
        "arguments",
    )
    list_filter = ("state", "scheduled_for", "task")
    search_fields = ("task",)
    ordering = ("-scheduled_for", "-pk")

    @admin.display(description=_("duration"))
    def took(self, run: JobRun) -> str:
        """Return the duration of the last attempt in seconds."""
        return "" if run.duration is None else f"{run.duration.total_seconds():.3f} s"
