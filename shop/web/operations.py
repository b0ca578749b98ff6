"""The operations page for staff: lock policy, held locks, store health, and switching the lock."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from inventory.models import WriteStrategy
from locking import LockError, admin, locks, policy
from shop.administration import alerts
from shop.errors import STORE_ERRORS, BadInput, NotAllowed, ServiceUnavailable
from shop.operations.condition import assess
from shop.operations.live import LiveState, get_live_state, get_outage, invalidate
from shop.sales.guards import guard_title
from shop.web.decorators import CustomerRequest, View, customer_form, customer_page
from shop.web.forms import SwitchForm

logger = logging.getLogger("shop")

MAX_ROWS = 200
"""Rows of the lock table; the page says how many more there are."""


def _may_switch(request: CustomerRequest) -> bool:
    return request.user.is_staff and request.user.has_perm("locking.switch_lock")


def _require(is_allowed: bool) -> None:
    if not is_allowed:
        raise NotAllowed


def _staff_page(view: Callable[[CustomerRequest], HttpResponse]) -> View:
    """Show a page to staff. While the store that knows them is down, show only what is public."""

    @customer_page
    def checked(request: CustomerRequest) -> HttpResponse:
        _require(request.user.is_staff)
        return view(request)

    @wraps(checked)
    def served(request: HttpRequest) -> HttpResponseBase:
        try:
            return checked(request)
        except (*STORE_ERRORS, ServiceUnavailable) as error:
            logger.warning("Operations page reduced: a store is unavailable (%s)", error)
        # Nothing here may ask the stores again.
        shown = {"conditions": assess(get_outage()), "user": None, "policy": None, "messages": ()}
        page = "ops/_outage.html" if "HX-Request" in request.headers else "ops/outage.html"
        return render(request, page, {**shown, "now": timezone.now()})

    return never_cache(served)


def _index(request: CustomerRequest, form: SwitchForm | None = None) -> HttpResponse:
    state, row = get_live_state(), policy.current()
    active = {"backend": row.backend, "mode": row.mode}
    asked = {name: value for name, value in request.GET.items() if name in active}
    context = {
        **_live(request, state),
        "form": form or SwitchForm(initial=active | asked),
        "now": timezone.now(),
    }
    status = 400 if form is not None and form.errors else 200
    return render(request, "ops/index.html", context, status=status)


index = _staff_page(_index)


@_staff_page
def live(request: CustomerRequest) -> HttpResponse:
    """Render the part that changes every second."""
    context = {**_live(request, get_live_state()), "is_part": True}
    return render(request, "ops/_live.html", context)


@_staff_page
def statistics(request: CustomerRequest) -> HttpResponse:
    """Render the part that changes every few seconds."""
    return render(request, "ops/_statistics.html", _live(request, get_live_state()))


def _live(request: CustomerRequest, state: LiveState) -> dict[str, Any]:
    return {
        "state": state,
        "conditions": assess(state),
        "rows": state.rows[:MAX_ROWS],
        "unknown": " · ".join(map(guard_title, state.unknown)),
        "more": max(0, len(state.rows) - MAX_ROWS),
        "is_paused": request.GET.get("rate") == "0",
        "may_switch": _may_switch(request),
        "backends": list(locks),
    }


@customer_form
def switch(request: CustomerRequest) -> HttpResponse:
    """Switch to a backend by `step`: "drain" or "force".

    Force and naive writes require the backend's name in `confirm`; without it a page asks for it.
    """
    _require(_may_switch(request))
    step = request.POST.get("step")
    if step not in ("drain", "force"):
        raise BadInput
    form = SwitchForm(request.POST)
    if not form.is_valid():
        return _index(request, form)
    requested = {name: form.cleaned_data[name] for name in ("backend", "mode", "reason")}
    is_forced = step == "force"
    if is_forced or (step == "drain" and requested["mode"] == WriteStrategy.NAIVE):
        shown = {"name": requested["backend"], "step": step, "mode": requested["mode"]}
        old = policy.current()
        if asked := admin.confirm(request, None, "ops/confirm.html", old=old, **shown):
            return asked
    try:
        by = request.user.get_username()
        now = policy.switch(wait=is_forced, force=is_forced, changed_by=by, **requested)
    except LockError as error:
        messages.error(request, _("Nothing was changed: %s") % error)
        return _index(request, form)
    if is_forced:
        messages.success(request, _("Switched to %s") % guard_title(now.backend, now.mode))
    else:
        policy.finish_in_background()
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
    alerts.audit_stock()
    return _redirect("#stock-audit")


def _redirect(anchor: str = "") -> HttpResponse:
    invalidate()
    return redirect(reverse("ops") + anchor)
