"""Load tests from the pages: one at a time, run by a Celery worker, stopped, kept.

A worker holds the lock "lab:<id>" in Redis while it runs a load test. If a run is stored as running
and that lock is free, its worker has died.
"""

import time
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_noop
from django.utils.translation import gettext_lazy as _

from loadtest import scenarios
from loadtest.kernel.faults import FAULTS
from loadtest.load.plan import Plan
from loadtest.load.progress import LoadProgress
from loadtest.load.run import Progress, run
from loadtest.models import LabRun
from loadtest.web import live
from locking import Lock, LockError, locks
from locking.names import UNIQUE_PREFIX, ReservedName
from shop.errors import NotFound, ShopError
from shop.models import User

REPEATS = 5
"""Runs of each lock in a load test from the pages: one run says nothing about its spread."""
OVERSELL_IN_TEN_SECONDS = Plan(backends=("none", "redis"), repeats=REPEATS)
PAUSED_HOLDER = Plan(
    backends=("redis",), disciplines=("naive", "fenced"), fault="pause-holder", repeats=3
)
PRESETS = {"oversell": OVERSELL_IN_TEN_SECONDS, "pause": PAUSED_HOLDER}
"""The load tests that anyone may start, by their names in forms."""
TIME_LIMIT = 600
"""Seconds after which a load test from the pages is aborted."""
WAIT_LIMIT = 120
"""Seconds after which a run that no worker has started counts as failed."""
KEEP = timedelta(days=30)
PROGRESS_SECONDS = 0.25
Kind, State = LabRun.Kind, LabRun.State


class RunUnderWay(ShopError):
    """Another load test is running; two at once would distort each other's figures."""

    code = "run_under_way"
    title = _("A load test is already running")
    advice = _(
        "Wait for it to end; staff can stop it. Two tests at once would distort each other's"
        " results."
    )
    link_title = _("Go to the running test")

    @property
    def link(self) -> str:
        """Return the address of the run, or of the lab if it has ended meanwhile."""
        run = LabRun.objects.filter(slot=1).first()
        return run.get_absolute_url() if run else reverse("lab")


class Stopped(Exception):
    """The run was stopped on request."""


def start(*, plan: Plan | str, user: User | None) -> LabRun:
    """Create a load test, or a run of the named scenario.

    Raise NotFound for an unknown name, and RunUnderWay while another run is active.
    """
    if isinstance(plan, Plan):
        return _start(user, Kind.RUN, asdict(plan))
    if plan not in scenarios.SCENARIOS:
        raise NotFound
    return _start(user, Kind.SCENARIO, {"scenario": plan})


def repeat(*, run_id: UUID, user: User) -> LabRun:
    """Create a run with the plan of an earlier one."""
    earlier = get_run(run_id)
    return _start(user, earlier.kind, earlier.plan)


def _start(user: User | None, kind: str, plan: dict[str, Any]) -> LabRun:
    fail_abandoned()
    try:
        with transaction.atomic():
            return LabRun.objects.create(kind=kind, plan=plan, created_by=user)
    except IntegrityError:
        raise RunUnderWay from None


def fail_abandoned() -> None:
    """Mark runs as failed that no worker started in time, or whose worker was killed."""
    overdue = timezone.now() - timedelta(seconds=WAIT_LIMIT)
    for active in LabRun.objects.filter(slot=1):
        error = ""
        if active.state == State.RUNNING:
            with suppress(LockError):  # without Redis the state of the worker is unknown
                error = "" if lock_of(active.pk).locked() else gettext_noop("The worker crashed.")
        elif active.created_at < overdue:
            error = gettext_noop("No worker picked it up.")
        if error:
            rows = LabRun.objects.filter(pk=active.pk, state=active.state)
            rows.update(state=State.FAILED, error=error, slot=None)


def lock_of(run_id: UUID) -> Lock:
    """Return the lock that the worker of a run holds while it is alive; no switch waits for it."""
    return locks["redis"].lock(ReservedName(f"{UNIQUE_PREFIX}lab:{run_id}"), timeout=0)


def stop(run_id: UUID) -> None:
    """Stop a run: at once while it waits, at its next progress event while it runs."""
    rows = LabRun.objects.filter(pk=run_id)
    if not rows.filter(state=State.WAITING).update(state=State.STOPPED, slot=None):
        rows.filter(state=State.RUNNING).update(stop_requested=True)


def request_fault(run: LabRun, name: str) -> str:
    """Request a fault of a load test; return "", or why nothing is injected."""
    active = LabRun.objects.filter(pk=run.pk, slot__isnull=False, requested_fault="")
    if run.is_over:
        return gettext("Nothing was injected: the run has ended.")
    if name not in live.offered(run):
        return gettext("Nothing was injected: this fault cannot hit any lock of this test.")
    if not active.update(requested_fault=name):
        return gettext(
            "Nothing was injected: the last request is still on its way. Try again in a moment."
        )
    return ""


def execute(run_id: UUID) -> None:
    """Execute a run that waits; ignore one that has already been started."""
    lock = lock_of(run_id)
    if not lock.acquire(blocking=False):  # a broker may deliver a message twice
        return
    try:
        waiting = LabRun.objects.filter(pk=run_id, state=State.WAITING)
        if waiting.update(state=State.RUNNING):
            _execute(LabRun.objects.get(pk=run_id))
    finally:
        with suppress(LockError):
            lock.release()


def _execute(row: LabRun) -> None:
    end: dict[str, Any] = {"state": State.FAILED, "error": gettext_noop("The worker was stopped.")}
    show = _save_progress(row.pk)
    try:
        if row.kind == Kind.SCENARIO:
            report = scenarios.run([row.plan["scenario"]], show)
        else:
            report = run(Plan(**row.plan), show)
        end = {"state": State.DONE, "report": report}
    except Stopped:
        end = {"state": State.STOPPED}
    except Exception as error:
        end["error"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        # Unless it counts as crashed, because Redis lost its lock: then another one may run.
        LabRun.objects.filter(pk=row.pk, state=State.RUNNING).update(slot=None, **end)


def _save_progress(run_id: UUID) -> Progress:
    """Return a listener that saves progress, and returns a fault or raises Stopped on request."""
    pace, rows = LoadProgress(), LabRun.objects.filter(pk=run_id)
    store = rows.get().plan.get("store", "")
    saved_at = 0.0

    def show(event: dict[str, Any]) -> str | None:
        nonlocal saved_at
        is_due = time.monotonic() - saved_at >= PROGRESS_SECONDS
        if not pace.update(event) or not (is_due or event["event"] != "progress"):
            return None
        saved_at = time.monotonic()
        rows.update(progress=pace.as_dict())
        asked = rows.values_list("state", "stop_requested", "requested_fault").get()
        state, is_stopped, fault = asked
        if is_stopped or state != State.RUNNING:
            raise Stopped
        if not (fault and pace.run and FAULTS[fault].applies(pace.run["backend"], store)):
            return None  # it waits for a run of a lock that it can hit
        pace.run["requested"] = fault
        rows.update(requested_fault="", progress=pace.as_dict())
        return str(fault)

    return show


def latest_of_scenarios() -> dict[str, LabRun]:
    """Return the newest finished run of each scenario by its name."""
    finished = LabRun.objects.filter(kind=Kind.SCENARIO, state=State.DONE).order_by("created_at")
    newest = {plan["scenario"]: pk for pk, plan in finished.values_list("pk", "plan")}
    return {one.plan["scenario"]: one for one in LabRun.objects.filter(pk__in=newest.values())}


def prune() -> int:
    """Delete runs older than KEEP except the newest of each scenario; return their number."""
    old = LabRun.objects.filter(slot=None, created_at__lt=timezone.now() - KEEP)
    kept = [one.pk for one in latest_of_scenarios().values()]
    return old.exclude(pk__in=kept).delete()[0]


def get_run(run_id: UUID) -> LabRun:
    """Return the run with this id; raise NotFound if there is none."""
    found = LabRun.objects.filter(pk=run_id).select_related("created_by").first()
    if found is None:
        raise NotFound
    if not found.is_over:
        fail_abandoned()
        found.refresh_from_db()
    return found
