"""Load tests from the pages: started one at a time, run by a worker, stopped, kept.

A worker that runs one holds the lock "lab:<id>" in Redis while it does. Whoever looks at a run that
is said to be running, and finds that lock free, knows that its worker has died.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import gettext_noop

from loadtest import scenarios
from loadtest.load.plan import Plan
from loadtest.load.progress import Pace
from loadtest.load.run import run
from loadtest.models import LabRun
from locking import Lock, LockError, locks
from shop.errors import NotFound, ShopError
from shop.models import User

OVERSELL_IN_TEN_SECONDS = Plan(backends=("none", "redis"), disciplines=("naive",))
TIME_LIMIT = 600
"""Seconds after which a load test from the pages is broken off."""
WAIT_LIMIT = 120
"""Seconds after which nobody expects a worker any more."""
KEEP = timedelta(days=30)
PROGRESS_SECONDS = 0.5
SHOWN = ("backend", "discipline", "stock", "sold", "oversold", "verdict", "why")
"""What the page tells of a run whose others are still under way."""
Kind, State = LabRun.Kind, LabRun.State


class RunUnderWay(ShopError):
    """There is one at a time: two would measure each other."""

    code = "run_under_way"
    title = _("A load test is under way")
    advice = _("Wait for it to end, or stop it; two at once would measure each other.")


class Stopped(Exception):
    """Somebody asked the run to stop."""


def start(*, plan: Plan, user: User) -> LabRun:
    """Put a load test in the one place there is; RunUnderWay when that is taken."""
    return _start(user, Kind.RUN, plan.settings())


def play(*, name: str, user: User) -> LabRun:
    """Put a scenario in the same place; NotFound when there is none of that name."""
    if name not in scenarios.SCENARIOS:
        raise NotFound
    return _start(user, Kind.SCENARIO, {"scenario": name})


def again(*, run_id: UUID, user: User) -> LabRun:
    """Start the same once more."""
    earlier = get_run(run_id)
    return _start(user, earlier.kind, earlier.plan)


def _start(user: User, kind: str, plan: dict[str, Any]) -> LabRun:
    bury_dead()
    try:
        with transaction.atomic():
            return LabRun.objects.create(kind=kind, plan=plan, created_by=user)
    except IntegrityError:
        raise RunUnderWay from None


def bury_dead() -> None:
    """A worker that was killed cannot say so, and one that is not there takes nothing up."""
    overdue = timezone.now() - timedelta(seconds=WAIT_LIMIT)
    LabRun.objects.filter(state=State.WAITING, created_at__lt=overdue).update(
        state=State.FAILED, why=gettext_noop("No worker took it up."), slot=None
    )
    for dead in LabRun.objects.filter(state=State.RUNNING):
        with suppress(LockError):  # Redis is silent: nobody can tell
            if not _alive(dead.pk).locked():
                LabRun.objects.filter(pk=dead.pk, state=State.RUNNING).update(
                    state=State.FAILED, why=gettext_noop("Its worker died."), slot=None
                )


def _alive(run_id: UUID) -> Lock:
    return locks["redis"].lock(f"lab:{run_id}", timeout=0)


def stop(run_id: UUID) -> None:
    """End it: at once while it waits, at its next sign of progress while it runs."""
    mine = LabRun.objects.filter(pk=run_id)
    if not mine.filter(state=State.WAITING).update(state=State.STOPPED, slot=None):
        mine.filter(state=State.RUNNING).update(is_stopping=True)


def execute(run_id: UUID) -> None:
    """Run what waits; one that was begun already is left alone."""
    alive = _alive(run_id)
    if not alive.acquire(blocking=False):  # a broker may deliver a message twice
        return
    try:
        waiting = LabRun.objects.filter(pk=run_id, state=State.WAITING)
        if waiting.update(state=State.RUNNING):
            _execute(LabRun.objects.get(pk=run_id))
    finally:
        with suppress(LockError):
            alive.release()


def _execute(mine: LabRun) -> None:
    end: dict[str, Any] = {"state": State.FAILED, "why": gettext_noop("The worker was stopped.")}
    try:
        end = {"state": State.DONE, "report": _report(mine)}
    except Stopped:
        end = {"state": State.STOPPED}
    except Exception as error:
        end["why"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        LabRun.objects.filter(pk=mine.pk).update(slot=None, **end)


def _report(mine: LabRun) -> dict[str, Any]:
    show = _shown_on_page(mine.pk)
    if mine.kind == Kind.SCENARIO:
        return scenarios.run([mine.plan["scenario"]], show)
    return run(Plan(**mine.plan), show)


def _shown_on_page(run_id: UUID) -> Callable[[dict[str, Any]], None]:
    """A listener that keeps the row's pace, and ends the run when somebody asks for it."""
    pace, over = Pace(), []
    shown_at = 0.0

    def show(event: dict[str, Any]) -> None:
        nonlocal shown_at
        moved = pace.hear(event)
        if event["event"] == "run":
            over.append({name: event["run"][name] for name in SHOWN})
        now = time.monotonic()
        if moved and now - shown_at >= PROGRESS_SECONDS:
            shown_at = now
            LabRun.objects.filter(pk=run_id).update(pace={**pace.as_dict(), "over": over})
            if LabRun.objects.filter(pk=run_id, is_stopping=True).exists():
                raise Stopped

    return show


def latest_of_scenarios() -> dict[str, LabRun]:
    """The newest finished run of each scenario, by its name."""
    played = LabRun.objects.filter(kind=Kind.SCENARIO, state=State.DONE).order_by("created_at")
    newest = {plan["scenario"]: pk for pk, plan in played.values_list("pk", "plan")}
    return {one.plan["scenario"]: one for one in LabRun.objects.filter(pk__in=newest.values())}


def prune() -> int:
    """Delete what was started longer ago than KEEP, but the last of each scenario; how many."""
    old = LabRun.objects.filter(slot=None, created_at__lt=timezone.now() - KEEP)
    shown = [one.pk for one in latest_of_scenarios().values()]
    return old.exclude(pk__in=shown).delete()[0]


def get_run(run_id: UUID) -> LabRun:
    """A load test by its address; NotFound when there is none."""
    found = LabRun.objects.filter(pk=run_id).select_related("created_by").first()
    if found is None:
        raise NotFound
    if found.state == State.RUNNING:
        bury_dead()
        found.refresh_from_db()
    return found
