"""The form of a load test, which validates its fields and builds a Plan."""

from dataclasses import fields
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from inventory.models import WriteStrategy
from loadtest.kernel.faults import FAULTS
from loadtest.load.plan import BACKENDS, LIMITS, STORES, Plan, PlanError

GROUPS = (
    (_("Load"), ("buyers", "stock", "think_ms", "processes", "threads")),
    (_("Fault"), ("fault", "at")),
    (_("Database and repetition"), ("store", "repeats", "seed")),
)
DEFAULTS = {field.name: field.default for field in fields(Plan)}
MOST_BUYERS = 20_000
"""Of all runs together: a load test from a page must end within its time limit."""


def _number(name: str, label: Any, kind: Any = forms.IntegerField) -> Any:
    least, most = LIMITS[name]
    return kind(label=label, min_value=least, max_value=most, initial=DEFAULTS[name])


class PlanForm(forms.Form):
    """The fields of a load test that staff may set on a page."""

    backends = forms.MultipleChoiceField(
        label=_("Backends"),
        choices=[(name, name) for name in BACKENDS],
        widget=forms.CheckboxSelectMultiple,
        initial=["none", "redis"],
    )
    disciplines = forms.MultipleChoiceField(
        label=_("Write strategy"),
        choices=WriteStrategy.choices,
        widget=forms.CheckboxSelectMultiple,
        initial=["naive"],
    )
    buyers = _number("buyers", _("Buyers"))
    stock = _number("stock", _("Stock"))
    think_ms = _number("think_ms", _("Payment check (ms)"), forms.FloatField)
    processes = _number("processes", _("Processes"))
    threads = _number("threads", _("Threads per process"))
    repeats = _number("repeats", _("Runs of each lock"))
    seed = _number("seed", _("Random seed"))
    store = forms.ChoiceField(
        label=_("Database"),
        choices=list(STORES.items()),
        help_text=_(
            "mysql_session needs MariaDB, postgresql_session PostgreSQL, and killing the database "
            "either of them."
        ),
    )
    fault = forms.ChoiceField(
        label=_("Fault"), choices=[(name, fault.description) for name, fault in FAULTS.items()]
    )
    at = _number("at", _("Share sold before it"), forms.FloatField)

    def clean(self) -> dict[str, Any]:
        """Build the plan; report combinations of fields that PlanError refuses."""
        cleaned = super().clean() or {}
        if not self.errors:
            lists = {name: tuple(cleaned[name]) for name in ("backends", "disciplines")}
            try:
                plan = Plan(**{**cleaned, **lists})
            except PlanError as error:
                raise forms.ValidationError(str(error)) from error
            if plan.buyers * plan.runs > MOST_BUYERS:
                raise forms.ValidationError(
                    _("Buyers × runs must be at most %(most)s here; use the command for more."),
                    params={"most": MOST_BUYERS},
                )
            cleaned["plan"] = plan
        return cleaned

    def groups(self) -> list[tuple[str, list[forms.BoundField]]]:
        """Return the fields that are not lists, under the titles that the page shows."""
        return [(str(title), [self[name] for name in names]) for title, names in GROUPS]
