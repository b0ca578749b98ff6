"""Load tests from the pages: started one at a time, run by a worker, kept."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from loadtest.models import LabRun
from loadtest.plan import Plan
from loadtest.run import run
from shop.errors import NotFound, ShopError
from shop.models import User

OVERSELL_IN_TEN_SECONDS = Plan(backends=("none", "redis"), disciplines=("naive",))
TIME_LIMIT = 120
"""Seconds after which a load test from the pages is broken off."""
PROGRESS_SECONDS = 0.5


class RunUnderWay(ShopError):
    """There is one at a time: two would measure each other."""

    code = "run_under_way"
    title = _("A load test is under way")
    advice = _("Wait for it to end; two at once would measure each other.")


def start(*, plan: Plan, user: User) -> LabRun:
    """Put a load test in the one place there is; RunUnderWay when that is taken."""
    # A worker that was killed cannot say so.
    dead = timezone.now() - timedelta(seconds=2 * TIME_LIMIT)
    LabRun.objects.filter(slot=1, created_at__lt=dead).update(
        state=LabRun.State.FAILED, why="No worker finished it.", slot=None
    )
    try:
        with transaction.atomic():
            return LabRun.objects.create(plan=plan.settings(), created_by=user)
    except IntegrityError:
        raise RunUnderWay from None


def execute(run_id: UUID) -> None:
    """Run a load test that waits; one that was begun already is left alone."""
    mine = LabRun.objects.filter(pk=run_id, slot=1)
    # A broker may deliver the same message twice.
    if not mine.filter(state=LabRun.State.WAITING).update(state=LabRun.State.RUNNING):
        return
    shown_at = 0.0

    def show(event: dict[str, Any]) -> None:
        nonlocal shown_at
        now = time.monotonic()
        if event["event"] == "progress" and now - shown_at >= PROGRESS_SECONDS:
            shown_at = now
            mine.update(progress=f"{event['backend']} {event['served']}/{event['of']}")

    end: dict[str, Any] = {"state": LabRun.State.FAILED, "why": "The worker was stopped."}
    try:
        report = run(Plan(**mine.get().plan), show)
        end = {"state": LabRun.State.DONE, "report": report}
    except Exception as error:
        end["why"] = f"{type(error).__name__}: {error}"
        raise
    finally:
        mine.update(slot=None, **end)


def get_run(run_id: UUID) -> LabRun:
    """A load test by its address; NotFound when there is none."""
    found = LabRun.objects.filter(pk=run_id).select_related("created_by").first()
    if found is None:
        raise NotFound
    return found
