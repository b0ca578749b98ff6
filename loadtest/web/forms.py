"""The form of a load test, which validates its fields and builds a Plan."""

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from loadtest.kernel.params import PlanError
from loadtest.load.plan import Plan
from loadtest.web.runs import REPEATS

GROUPS = (
    (_("Load"), ("buyers", "stock", "think_ms", "processes", "threads")),
    (_("Fault"), ("fault", "at")),
    (_("Database and repetition"), ("store", "repeats", "seed")),
)
MOST_BUYERS = 20_000
"""Of all runs together: a load test from a page must end within its time limit."""


class PlanForm(forms.Form):
    """The fields of a load test that staff may set on a page."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields.update(Plan.form_fields())
        self.fields["repeats"].initial = REPEATS

    def clean(self) -> dict[str, Any]:
        """Build the plan; report combinations of fields that PlanError refuses."""
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                plan = Plan(**cleaned)
            except PlanError as error:
                raise forms.ValidationError(str(error)) from error
            if plan.buyers * plan.runs > MOST_BUYERS:
                raise forms.ValidationError(
                    _("Buyers × runs must be at most %(most)s here; use the command for more."),
                    params={"most": f"{MOST_BUYERS:,}"},
                )
            cleaned["plan"] = plan
        return cleaned

    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Return the fields that are not lists, under the titles that the page shows."""
        return [(str(title), [self[name] for name in names]) for title, names in GROUPS]
