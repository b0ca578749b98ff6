"""The lab's pages: staff start a load test, whoever has its address reads what it showed."""

from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from loadtest import report, runs, tasks
from loadtest.models import LabRun
from loadtest.picture import draw
from loadtest.plan import Plan
from shop.models import User

SHOWN = 20


def _staff(request: HttpRequest) -> User:
    assert isinstance(request.user, User)
    if not request.user.is_staff:
        raise PermissionDenied
    return request.user


@require_safe
@never_cache
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """The presets and the load tests that were run."""
    _staff(request)
    latest = LabRun.objects.select_related("created_by")[:SHOWN]
    listed = [(one, report.sentence(one.report["runs"]) if one.report else "") for one in latest]
    return render(
        request, "lab/index.html", {"listed": listed, "preset": runs.OVERSELL_IN_TEN_SECONDS}
    )


@require_POST
@login_required
def start(request: HttpRequest) -> HttpResponse:
    """Start the preset, and go to its page."""
    run = runs.start(plan=runs.OVERSELL_IN_TEN_SECONDS, user=_staff(request))
    transaction.on_commit(lambda: tasks.execute.delay(str(run.pk)))
    return redirect(run, permanent=False)


@require_safe
@never_cache
def show(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """One load test; asked for by htmx, only the part that changes."""
    run = runs.get_run(run_id)
    context: dict[str, object] = {"run": run, "command": Plan(**run.plan).command()}
    if run.report:
        lines = run.report["runs"]
        context |= {
            "sentence": report.sentence(lines),
            "surprises": report.surprises(lines),
            "picture": draw(lines),
            "lines": lines,
        }
    is_part = bool(request.headers.get("HX-Request"))
    return render(request, "lab/_run.html" if is_part else "lab/run.html", context)
