"""Staff's page: which lock guards the stock, who holds one, how the stores do; and the switch."""

from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from locking import LockError, locks, policy
from shop.administration import alerts
from shop.errors import BadInput, NotAllowed
from shop.operations.live import Live, Row, forget, see_live
from shop.operations.statistics import see_rest
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import ForceForm, SwitchForm

RATES = ("1", "2", "5", "10", "0")
"""Seconds between two looks; 0 is a pause."""
REST_SECONDS = 5
SHOWN = 200
"""Rows of the lock table, at most; the others are counted."""
FILTERS: dict[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "held": lambda row: not row.is_free,
    "waiting": lambda row: bool(row.held.waiters),
    "stale": lambda row: row.is_stale,
}

StaffView = Callable[[CustomerRequest], HttpResponse]


def _for_staff(view: StaffView) -> StaffView:
    @wraps(view)
    def checked(request: CustomerRequest) -> HttpResponse:
        if not request.user.is_staff:
            raise NotAllowed
        return view(request)

    return checked


def _for_switchers(view: StaffView) -> StaffView:
    @wraps(view)
    def checked(request: CustomerRequest) -> HttpResponse:
        if not _may_switch(request):
            raise NotAllowed
        return view(request)

    return _for_staff(checked)


def _may_switch(request: CustomerRequest) -> bool:
    return request.user.has_perm("locking.switch_lock")


@never_cache
@customer_page
@_for_staff
def index(request: CustomerRequest) -> HttpResponse:
    """All of it."""
    return _index(request)


def _index(request: CustomerRequest, form: Form | None = None) -> HttpResponse:
    seen = see_live()
    in_force = {"backend": seen.policy.backend, "strategy": seen.policy.strategy}
    context = {
        **_live(request, seen),
        **_rest(request),
        "form": form or SwitchForm(initial=in_force),
        "now": timezone.now(),
    }
    status = 400 if form is not None and form.errors else 200
    return render(request, "ops/index.html", context, status=status)


@never_cache
@customer_page
@_for_staff
def live(request: CustomerRequest) -> HttpResponse:
    """The part that moves every second."""
    context = {**_live(request, see_live()), "is_part": True}
    return render(request, "ops/_live.html", context)


@never_cache
@customer_page
@_for_staff
def rest(request: CustomerRequest) -> HttpResponse:
    """The part that moves more slowly."""
    return render(request, "ops/_rest.html", _rest(request))


def _asked(request: HttpRequest) -> dict[str, str]:
    """Which locks are asked for, and how often; what cannot be understood is the usual."""
    show, rate = request.GET.get("show", "all"), request.GET.get("rate", "2")
    return {
        "show": show if show in FILTERS else "all",
        "q": request.GET.get("q", "").strip()[:100],
        "rate": rate if rate in RATES else "2",
    }


def _live(request: CustomerRequest, seen: Live) -> dict[str, Any]:
    asked = _asked(request)
    text = asked["q"].casefold()
    rows = [
        row
        for row in seen.rows
        if FILTERS[asked["show"]](row)
        and text in f"{row.held.name} {row.sale} {row.held.owner} {row.backend}".casefold()
    ]
    return {
        "seen": seen,
        "rows": rows[:SHOWN],
        "more": max(0, len(rows) - SHOWN),
        "counts": {name: sum(map(chosen, seen.rows)) for name, chosen in FILTERS.items()},
        "asked": asked,
        "query": urlencode(asked),
        "may_switch": _may_switch(request),
        "backends": list(locks),
        **{f"{name}_links": _links(asked, name, of) for name, of in _CHOICES},
    }


_CHOICES = (("show", FILTERS), ("rate", RATES))


def _links(asked: dict[str, str], name: str, of: Any) -> list[tuple[str, str, bool]]:
    """A choice: its value, the query that makes it, whether it is made."""
    return [(value, urlencode({**asked, name: value}), asked[name] == value) for value in of]


def _rest(request: CustomerRequest) -> dict[str, Any]:
    paused = _asked(request)["rate"] == "0"
    return {"rest": see_rest(), "rest_seconds": None if paused else REST_SECONDS}


@customer_form
@_for_switchers
def switch(request: CustomerRequest) -> HttpResponse:
    """`step` is check, drain or force; that asks for the backend's name in `confirm` first."""
    step = request.POST.get("step")
    if step not in ("check", "drain", "force"):
        raise BadInput
    if step == "force":
        return _force(request)
    form = SwitchForm(request.POST)
    if not form.is_valid():
        return _index(request, form)
    wanted = form.cleaned_data
    try:
        if step == "check":
            locks[wanted["backend"]].probe()
            messages.success(request, _("%s answers; nothing was changed.") % wanted["backend"])
            return _index(request, form)
        policy.begin_switch(changed_by=request.user.get_username(), **wanted)
    except LockError as error:
        messages.error(request, _("Nothing was changed: %s") % error)
        return _index(request, form)
    policy.finish_in_background()
    return _back()


def _force(request: CustomerRequest) -> HttpResponse:
    asks_first = "confirm" not in request.POST
    form = ForceForm(request.POST)
    if asks_first or not form.is_valid():
        if form.errors.keys() & {"backend", "strategy"}:
            raise BadInput
        if asks_first:
            form.errors.clear()
        return render(request, "ops/force.html", {"form": form}, status=200 if asks_first else 400)
    wanted = {name: form.cleaned_data[name] for name in ("backend", "strategy", "reason")}
    try:
        now = policy.switch(changed_by=request.user.get_username(), force=True, **wanted)
    except LockError as error:
        messages.error(request, _("Nothing was changed: %s") % error)
        return render(request, "ops/force.html", {"form": form})
    messages.success(request, _("In force: %s") % now)
    return _back()


@customer_form
@_for_switchers
def cancel(request: CustomerRequest) -> HttpResponse:
    """End the switch that is under way, and stay."""
    if policy.cancel_switch():
        messages.success(request, _("Cancelled."))
    else:
        messages.error(request, _("No switch was under way."))
    return _back()


@customer_form
@_for_staff
def audit(request: CustomerRequest) -> HttpResponse:
    """Audit the sales under way now rather than in a minute."""
    alerts.audit_and_alert()
    return _back("#books")


def _back(where: str = "") -> HttpResponse:
    forget()
    response = redirect("ops")
    response["Location"] += where
    return response
