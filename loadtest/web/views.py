"""The pages of the lab: staff start load tests; anyone who has the address reads the result."""

from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from loadtest import scenarios
from loadtest.charts import export
from loadtest.load import report
from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.scenarios import export as scenario_export
from loadtest.web import runs, tasks
from loadtest.web.forms import PlanForm
from shop.models import User

LISTED = 20
FILES = {LabRun.Kind.RUN: ("csv", "html", "png", "json"), LabRun.Kind.SCENARIO: ("html", "json")}
TYPES = {
    "csv": "text/csv; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "png": "image/png",
}


def _may_run(request: HttpRequest) -> bool:
    user = request.user
    return isinstance(user, User) and user.is_staff and user.has_perm("loadtest.add_labrun")


def _authorized(request: HttpRequest) -> User:
    if not _may_run(request):
        raise PermissionDenied
    assert isinstance(request.user, User)
    return request.user


@require_safe
@never_cache
@login_required
def index(request: HttpRequest) -> HttpResponse:
    """Show the preset, the form and the latest load tests."""
    if not request.user.is_staff:
        raise PermissionDenied
    return _index(request, PlanForm())


def _index(request: HttpRequest, form: PlanForm) -> HttpResponse:
    runs.fail_abandoned()
    latest = list(LabRun.objects.select_related("created_by")[:LISTED])
    context = {
        "listed": [(one, _headline(one)) for one in latest],
        "under_way": next((one for one in latest if not one.is_over), None),
        "preset": runs.OVERSELL_IN_TEN_SECONDS,
        "may_run": _may_run(request),
        "form": form,
    }
    return render(request, "lab/index.html", context, status=400 if form.errors else 200)


@require_POST
@login_required
def start(request: HttpRequest) -> HttpResponse:
    """Start the preset or the plan of the form, and redirect to its page."""
    user = _authorized(request)
    plan = runs.OVERSELL_IN_TEN_SECONDS
    if "form" in request.POST:
        form = PlanForm(request.POST)
        if not form.is_valid():
            return _index(request, form)
        plan = form.cleaned_data["plan"]
    return _enqueue(runs.start(plan=plan, user=user))


@require_safe
@never_cache
@login_required
def scenario_list(request: HttpRequest) -> HttpResponse:
    """List every scenario with the result of its newest run."""
    if not request.user.is_staff:
        raise PermissionDenied
    runs.fail_abandoned()
    latest = runs.latest_of_scenarios()
    cards = []
    for name, scenario in scenarios.SCENARIOS.items():
        run = latest.get(name)
        result = run.report["scenarios"][0] if run and run.report else None
        sentences = scenario.describe(result) if result else []
        cards.append({"scenario": scenario, "run": run, "result": result, "sentences": sentences})
    return render(request, "lab/scenarios.html", {"cards": cards, "may_run": _may_run(request)})


@require_POST
@login_required
def start_scenario(request: HttpRequest, name: str) -> HttpResponse:
    """Start a scenario, and redirect to its page."""
    return _enqueue(runs.start_scenario(name=name, user=_authorized(request)))


@require_POST
@login_required
def repeat(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Start a run with the same plan."""
    return _enqueue(runs.repeat(run_id=run_id, user=_authorized(request)))


def _enqueue(run: LabRun) -> HttpResponse:
    transaction.on_commit(lambda: tasks.execute.delay(str(run.pk)))
    return redirect(run, permanent=False)


@require_POST
@login_required
def stop(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Stop a load test."""
    _authorized(request)
    run = runs.get_run(run_id)
    runs.stop(run_id)
    return redirect(run, permanent=False)


@require_safe
@never_cache
@login_required
def command(request: HttpRequest) -> HttpResponse:
    """Show the command line that is equivalent to the form; htmx loads it into the page."""
    _authorized(request)
    form = PlanForm(request.GET)
    command_line = form.cleaned_data["plan"].command() if form.is_valid() else ""
    return render(request, "lab/_command.html", {"command": command_line, "form": form})


@require_safe
@never_cache
def show(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show one load test; for htmx, only the part that changes."""
    run = runs.get_run(run_id)
    context = {
        "run": run,
        "may_run": _may_run(request),
        "files": FILES[LabRun.Kind(run.kind)],
        **_shown(run),
    }
    if context["may_run"] and run.report and run.kind == LabRun.Kind.RUN:
        finished = LabRun.objects.filter(state=LabRun.State.DONE, kind=run.kind).exclude(pk=run.pk)
        context["others"] = [(one, _headline(one)) for one in finished[:LISTED]]
    context["address"] = request.build_absolute_uri(run.get_absolute_url())
    is_part = bool(request.headers.get("HX-Request"))
    return render(request, "lab/_run.html" if is_part else "lab/run.html", context)


@require_safe
@never_cache
def compare(request: HttpRequest) -> HttpResponse:
    """Show two load tests side by side."""
    try:
        pair = [runs.get_run(UUID(request.GET.get(name, ""))) for name in ("a", "b")]
    except ValueError:
        raise Http404 from None
    if any(one.kind != LabRun.Kind.RUN or not one.report for one in pair):
        raise Http404
    sides = [(one, _shown(one)) for one in pair]
    return render(request, "lab/compare.html", {"sides": sides, "rows": _rows(*pair)})


@require_safe
@never_cache
def download(request: HttpRequest, run_id: UUID, suffix: str) -> HttpResponse:
    """Return the report as a file."""
    run = runs.get_run(run_id)
    if not run.report or suffix not in FILES[LabRun.Kind(run.kind)]:
        raise Http404
    if suffix == "json":
        response: HttpResponse = JsonResponse(run.report)
    elif run.kind == LabRun.Kind.SCENARIO:
        page = scenario_export.html(run.report)
        response = HttpResponse(page, content_type=TYPES[suffix])
    else:
        response = HttpResponse(export.as_file(run.report, suffix), content_type=TYPES[suffix])
    name = f"lab-{run.created_at:%Y%m%d-%H%M%S}.{suffix}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


def _shown(run: LabRun) -> dict[str, Any]:
    """Return the template context of a run: its result, or its progress."""
    if run.kind == LabRun.Kind.SCENARIO:
        name = run.plan["scenario"]
        result = scenario_export.shown(run.report["scenarios"][0]) if run.report else {}
        return {
            "scenario": scenarios.SCENARIOS[name],
            "versions": run.report["versions"] if run.report else {},
            "command": f"manage.py lab scenario {name}",
            **result,
        }
    if run.report:
        return export.shown(run.report)
    over = run.progress.get("over", [])
    return {
        "command": Plan(**run.plan).command(),
        "so_far": report.sentence(over) if over else "",
    }


def _headline(run: LabRun) -> str:
    if run.kind == LabRun.Kind.SCENARIO:
        scenario = scenarios.SCENARIOS[run.plan["scenario"]]
        state = run.report["scenarios"][0]["verdict"] if run.report else run.get_state_display()
        return f"{scenario.title}: {state}"
    return report.sentence(run.report["runs"]) if run.report else str(run.get_state_display())


def _rows(*pair: LabRun) -> list[tuple[str, list[dict[str, Any] | None]]]:
    """Return a row for each guard with its worst run in each load test."""
    worst: list[dict[str, dict[str, Any]]] = []
    for one in pair:
        found: dict[str, dict[str, Any]] = {}
        for run in (one.report or {}).get("runs", ()):
            name = f"{run['backend']} + {run['discipline']}"
            if name not in found or run["oversold"] > found[name]["oversold"]:
                found[name] = run
        worst.append(found)
    names = dict.fromkeys(name for found in worst for name in found)
    return [(name, [found.get(name) for found in worst]) for name in names]
