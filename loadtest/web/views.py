"""The pages of the lab: anyone starts a preset or a scenario; staff start everything else."""

from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.utils import translation
from django.utils.translation import gettext as _
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_POST

from loadtest import scenarios
from loadtest.charts import export
from loadtest.cli.http import demo_url
from loadtest.load import report
from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.scenarios import export as scenario_export
from loadtest.scenarios.course import step_of
from loadtest.web import comparison, learn, live, runs, tasks
from loadtest.web.forms import PlanForm
from locking.jobs.unique import unique
from shop.models import User
from shop.platform import rate_limits
from shop.web.decorators import live_page, public_page, visitor_form

LISTED = 20
PRESET = runs.OVERSELL_IN_TEN_SECONDS
FILES = {
    LabRun.Kind.RUN: ("csv", "html", "png", "svg", "json"),
    LabRun.Kind.SCENARIO: ("csv", "html", "png", "json"),
}
TYPES = {
    "svg": "image/svg+xml",
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


@live_page
def index(request: HttpRequest) -> HttpResponse:
    """Show the preset; for staff also the form and the latest load tests."""
    return _index(request, PlanForm())


def _index(request: HttpRequest, form: PlanForm) -> HttpResponse:
    runs.fail_abandoned()
    latest = list(LabRun.objects.select_related("created_by")[:LISTED])
    context = {
        "listed": [(one, _headline(one)) for one in latest],
        "under_way": next((one for one in latest if not one.is_over), None),
        "preset": PRESET,
        "may_run": _may_run(request),
        "form": form,
    }
    return render(request, "lab/index.html", context, status=400 if form.errors else 200)


@visitor_form
def start(request: HttpRequest) -> HttpResponse:
    """Start a preset, for anyone, or the plan of the form, for staff; redirect to its page."""
    if "form" not in request.POST:
        return _start_for_anyone(request, runs.PRESETS.get(request.POST.get("preset", ""), PRESET))
    user = _authorized(request)
    form = PlanForm(request.POST)
    if not form.is_valid():
        return _index(request, form)
    return _enqueue(runs.start(plan=form.cleaned_data["plan"], user=user))


def _start_for_anyone(request: HttpRequest, plan: Plan | str) -> HttpResponse:
    """Start a run; visitors who may not run load tests are limited per address."""
    user, client = request.user, ("lab", rate_limits.address_of(request))
    is_limited = not _may_run(request)
    if is_limited:
        rate_limits.count(settings.LAB_GUEST_LIMIT, *client)
    try:
        run = runs.start(plan=plan, user=user if isinstance(user, User) else None)
    except runs.RunUnderWay:
        if is_limited:
            rate_limits.count(settings.LAB_GUEST_LIMIT, *client, cost=-1)
        raise
    request.session["lab_run"] = str(run.pk)
    return _enqueue(run)


@live_page
def chart(request: HttpRequest, run_id: UUID, half: str, suffix: str) -> HttpResponse:
    """Return one timeline of a scenario as a file."""
    run = runs.get_run(run_id)
    for result in (run.report or {}).get("scenarios", ()):
        for variant in result["halves"]:
            if scenario_export.half(variant) == half and suffix in ("svg", "png"):
                content = scenario_export.chart(result, variant, suffix)
                return HttpResponse(content, content_type=TYPES[suffix])
    raise Http404


@visitor_form
def start_scenario(request: HttpRequest, name: str) -> HttpResponse:
    """Start a scenario, and redirect to its page."""
    return _start_for_anyone(request, name)


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


@require_POST
@login_required
def send_traffic(request: HttpRequest) -> HttpResponse:
    """Let buyers come for half a minute, so that the operations page has something to show."""
    _authorized(request)
    own = str(uuid4())
    if not (url := demo_url()):
        messages.error(request, _("Nothing was sent: test traffic needs a running demo."))
    # No switch of the lock waits for it.
    elif unique(tasks.send_traffic, "shop", [url], task_id=own).id != own:
        text = _("Nothing was sent: the previous test traffic has not ended yet.")
        messages.warning(request, text)
    else:
        messages.success(request, _("Test traffic is on its way. It lasts half a minute."))
    return redirect("ops")


@require_POST
def inject(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Request a fault of a running load test, as staff or as its starter."""
    run = runs.get_run(run_id)
    if not _may_inject(request, run):
        raise PermissionDenied
    refusal = runs.request_fault(run, request.POST.get("fault", ""))
    words = _("Requested. The next buyer that holds the lock injects the fault.")
    if request.headers.get("HX-Request"):  # the figures show the request until it is injected
        return HttpResponse(refusal or f'<p hx-swap-oob="innerHTML:#announce">{words}</p>')
    messages.info(request, refusal or words)
    return redirect(run, permanent=False)


def _may_inject(request: HttpRequest, run: LabRun) -> bool:
    is_own = run.created_by is not None and run.created_by == request.user
    return is_own or request.session.get("lab_run") == str(run.pk) or _may_run(request)


@live_page
@login_required
def command(request: HttpRequest) -> HttpResponse:
    """Show the command line that is equivalent to the form; htmx loads it into the page."""
    _authorized(request)
    return render(request, "lab/_command.html", {"form": PlanForm(request.GET)})


@live_page
def show(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Show one load test; for htmx, its figures or, in the end, its result."""
    run = runs.get_run(run_id)
    context = {
        "run": run,
        "may_run": _may_run(request),
        "may_inject": _may_inject(request, run),
        "files": FILES[LabRun.Kind(run.kind)],
        **_shown(run),
    }
    if context["may_run"] and run.report and run.kind == LabRun.Kind.RUN:
        finished = LabRun.objects.filter(state=LabRun.State.DONE, kind=run.kind).exclude(pk=run.pk)
        context["others"] = [(one, _headline(one)) for one in finished[:LISTED]]
    context["heading"] = _heading(run)
    commands = {plan.command(): name for name, plan in runs.PRESETS.items()}
    context["preset"] = commands.get(context["command"])
    context["address"] = request.build_absolute_uri(run.get_absolute_url())
    if not request.headers.get("HX-Request"):
        return render(request, "lab/run.html", context)
    if not run.is_over:  # only the figures, so that the keyboard's focus stays on Stop
        return render(request, "lab/_progress.html", context)
    response = render(request, "lab/_run.html", context)
    response["HX-Retarget"] = "#run"
    return response


@live_page
def compare(request: HttpRequest) -> HttpResponse:
    """Show two load tests in the same charts."""
    try:
        pair = [runs.get_run(UUID(request.GET.get(name, ""))) for name in ("a", "b")]
    except ValueError:
        raise Http404 from None
    if any(one.kind != LabRun.Kind.RUN or not one.report for one in pair):
        raise Http404
    reports = [one.report or {} for one in pair]
    sides = [(one, _headline(one), Plan(**one.plan).command()) for one in pair]
    context = {
        **export.charts(comparison.overlaid(*reports)),
        "sides": sides,
        "settings": comparison.differing_settings(*reports),
        "rows": comparison.rows(*reports),
    }
    return render(request, "lab/compare.html", context)


@live_page
def download(request: HttpRequest, run_id: UUID, suffix: str) -> HttpResponse:
    """Return the report as a file."""
    run = runs.get_run(run_id)
    if not run.report or suffix not in FILES[LabRun.Kind(run.kind)]:
        raise Http404
    if suffix == "json":
        response: HttpResponse = JsonResponse(run.report)
    else:
        files = scenario_export if run.kind == LabRun.Kind.SCENARIO else export
        response = HttpResponse(files.as_file(run.report, suffix), content_type=TYPES[suffix])
    name = f"lab-{run.created_at:%Y%m%d-%H%M%S}.{suffix}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@public_page
@cache_control(public=True, max_age=3600)
def preview(
    request: HttpRequest, language: str, run_id: UUID | None = None, name: str = ""
) -> HttpResponse:
    """Return the picture of a result, or of a scenario's recording, for links in other sites."""
    if language not in dict(settings.LANGUAGES) or not (run_id or name in scenarios.SCENARIOS):
        raise Http404
    if not run_id:
        found = {"scenarios": [learn.recording(name)]}
    elif not (found := runs.get_run(run_id).report or {}):
        raise Http404
    with translation.override(language):
        files = scenario_export if "scenarios" in found else export
        return HttpResponse(files.preview(found), content_type=TYPES["png"])


def _shown(run: LabRun) -> dict[str, Any]:
    """Return the template context of a run: its result, or its progress."""
    if run.kind == LabRun.Kind.SCENARIO:
        name = run.plan["scenario"]
        result = scenario_export.shown(run.report["scenarios"][0]) if run.report else {}
        return {
            "scenario": scenarios.SCENARIOS[name],
            "step": step_of(name),
            "starting": [] if run.progress.get("now") else live.starting(run),
            "versions": run.report["versions"] if run.report else {},
            "seconds": scenario_export.recorded()["results"][name]["seconds"],
            "command": f".venv/bin/python manage.py lab scenario {name}",
            **result,
        }
    if run.report:
        return export.shown(run.report)
    return {"command": Plan(**run.plan).command(), **live.context(run)}


def _heading(run: LabRun) -> str:
    """Return what runs, and its state."""
    is_scenario = run.kind == LabRun.Kind.SCENARIO
    title = scenarios.SCENARIOS[run.plan["scenario"]].title if is_scenario else _("Load test")
    state = run.get_state_display()
    if run.report and is_scenario:
        state = scenario_export.words(run.report["scenarios"][0])
    elif run.stop_requested and not run.is_over:
        state = _("stopping")
    return _("%(title)s: %(state)s") % {"title": title, "state": state}


def _headline(run: LabRun) -> str:
    """Return the result of a run in a sentence, or its state."""
    has_sentence = run.report and run.kind == LabRun.Kind.RUN
    return report.headline(run.report["runs"]) if run.report and has_sentence else _heading(run)
