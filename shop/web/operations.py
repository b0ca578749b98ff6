"""The operations page for staff: lock policy, held locks, store health, and switching the lock."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.forms import Form
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext as _

from locking import LockError, locks, policy
from shop.administration import alerts
from shop.errors import BadInput, NotAllowed
from shop.operations.live import LiveState, LockRow, get_live_state, invalidate
from shop.operations.statistics import get_statistics
from shop.web.decorators import CustomerRequest, customer_form, customer_page
from shop.web.forms import ForceForm, SwitchForm

RATES = ("1", "2", "5", "10", "0")
"""Seconds between two polls; 0 pauses them."""
STATISTICS_SECONDS = 5
MAX_ROWS = 200
"""Rows of the lock table; the page says how many more there are."""
FILTERS: dict[str, Callable[[LockRow], bool]] = {
    "all": lambda row: True,
    "held": lambda row: bool(row.backend),
    "waiting": lambda row: bool(row.held.waiters),
    "stale": lambda row: row.is_stale,
}


def _may_switch(request: CustomerRequest) -> bool:
    return request.user.is_staff and request.user.has_perm("locking.switch_lock")


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise NotAllowed


@customer_page
def index(request: CustomerRequest) -> HttpResponse:
    """Show the whole page."""
    _require(request.user.is_staff)
    return _index(request)


def _index(request: CustomerRequest, form: Form | None = None) -> HttpResponse:
    state = get_live_state()
    active = {"backend": state.policy.backend, "strategy": state.policy.strategy}
    context = {
        **_live(request, state),
        **_statistics(request),
        "form": form or SwitchForm(initial=active),
        "now": timezone.now(),
    }
    status = 400 if form is not None and form.errors else 200
    return render(request, "ops/index.html", context, status=status)


@customer_page
def live(request: CustomerRequest) -> HttpResponse:
    """Render the part that changes every second."""
    _require(request.user.is_staff)
    context = {**_live(request, get_live_state()), "is_part": True}
    return render(request, "ops/_live.html", context)


@customer_page
def statistics(request: CustomerRequest) -> HttpResponse:
    """Render the part that changes every few seconds."""
    _require(request.user.is_staff)
    return render(request, "ops/_statistics.html", _statistics(request))


def _options(request: HttpRequest) -> dict[str, str]:
    """Return filter, search text and poll rate; invalid values become the defaults."""
    show, rate = request.GET.get("show", "all"), request.GET.get("rate", "2")
    return {
        "show": show if show in FILTERS else "all",
        "q": request.GET.get("q", "").strip()[:100],
        "rate": rate if rate in RATES else "2",
    }


def _live(request: CustomerRequest, state: LiveState) -> dict[str, Any]:
    options = _options(request)
    text = options["q"].casefold()
    rows = [
        row
        for row in state.rows
        if FILTERS[options["show"]](row)
        and text in f"{row.held.name} {row.sale} {row.held.owner} {row.backend}".casefold()
    ]
    return {
        "state": state,
        "rows": rows[:MAX_ROWS],
        "more": max(0, len(rows) - MAX_ROWS),
        "counts": {name: sum(map(matches, state.rows)) for name, matches in FILTERS.items()},
        "options": options,
        "may_switch": _may_switch(request),
        "backends": list(locks),
        "rates": RATES,
    }


def _statistics(request: CustomerRequest) -> dict[str, Any]:
    paused = _options(request)["rate"] == "0"
    return {"statistics": get_statistics(), "poll_seconds": None if paused else STATISTICS_SECONDS}


@customer_form
def switch(request: CustomerRequest) -> HttpResponse:
    """Check the backend, or switch to it by `step`: "check", "drain" or "force".

    Force requires the backend's name in `confirm`; without it the page asks for the name.
    """
    _require(_may_switch(request))
    step = request.POST.get("step")
    if step not in ("check", "drain", "force"):
        raise BadInput
    if step == "force":
        return _force(request)
    form = SwitchForm(request.POST)
    if not form.is_valid():
        return _index(request, form)
    requested = form.cleaned_data
    try:
        if step == "check":
            locks[requested["backend"]].probe()
            messages.success(
                request, _("%s is available. Nothing was changed.") % requested["backend"]
            )
            return _index(request, form)
        policy.switch(wait=False, changed_by=request.user.get_username(), **requested)
    except LockError as error:
        messages.error(request, _("Nothing was changed: %s") % error)
        return _index(request, form)
    policy.finish_in_background()
    return _redirect()


def _force(request: CustomerRequest) -> HttpResponse:
    is_unconfirmed = "confirm" not in request.POST
    form = ForceForm(request.POST)
    if is_unconfirmed or not form.is_valid():
        if form.errors.keys() & {"backend", "strategy"}:
            raise BadInput
        if is_unconfirmed:
            form.errors.clear()
        return render(
            request, "ops/force.html", {"form": form}, status=200 if is_unconfirmed else 400
        )
    requested = {name: form.cleaned_data[name] for name in ("backend", "strategy", "reason")}
    try:
        now = policy.switch(changed_by=request.user.get_username(), force=True, **requested)
    except LockError as error:
        messages.error(request, _("Nothing was changed: %s") % error)
        return render(request, "ops/force.html", {"form": form})
    messages.success(request, _("Active lock: %s") % now)
    return _redirect()


@customer_form
def cancel(request: CustomerRequest) -> HttpResponse:
    """Cancel the current switch."""
    _require(_may_switch(request))
    if policy.cancel_switch():
        messages.success(request, _("Cancelled."))
    else:
        messages.error(request, _("No switch is in progress."))
    return _redirect()


@customer_form
def audit(request: CustomerRequest) -> HttpResponse:
    """Audit the current sales now, without waiting for the scheduled audit."""
    _require(request.user.is_staff and request.user.has_perm("shop.change_sale"))
    alerts.audit_and_alert()
    return _redirect("#stock-audit")


def _redirect(anchor: str = "") -> HttpResponse:
    invalidate()
    response = redirect("ops")
    response["Location"] += anchor
    return response
