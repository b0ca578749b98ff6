"""/lab/: staff start load tests; anyone who has the address reads the result."""

import re
import uuid
from dataclasses import asdict, replace
from datetime import timedelta

import pytest
from celery.result import AsyncResult
from django.contrib.auth.models import Permission
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.scenarios.export import recorded
from loadtest.web import runs, tasks, views
from locking import locks
from shop.models import User
from tests.loadtest.charts.test_export import load_test
from tests.loadtest.lab import check_sum

SMALL = Plan(backends=("none", "redis"), disciplines=("naive",), buyers=60, stock=5)
FORM = {
    "form": "plan",
    **{name: value for name, value in asdict(SMALL).items() if name != "patience"},
}


@pytest.fixture
def staff(db):
    """A user who may start load tests."""
    user = User.objects.create(username="amy", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="add_labrun"))
    return User.objects.get(pk=user.pk)


@pytest.fixture
def sent(monkeypatch):
    """The ids of the load tests that were sent to a worker."""
    ids = []
    monkeypatch.setattr(tasks.execute, "delay", ids.append)
    return ids


def test_permissions_of_staff_and_customers(client, db, sent):
    run = LabRun.objects.create(plan=asdict(SMALL))
    actions = [
        reverse("lab-start"),
        reverse("lab-play", args=["holder-paused"]),
        *(reverse(f"lab-{name}", args=[run.pk]) for name in ("stop", "again")),
    ]
    pages = [reverse(name) for name in ("lab", "lab-command")]

    def statuses() -> list[int]:
        answers = [*map(client.post, actions), *map(client.get, pages)]
        return [answer.status_code for answer in answers]

    # Anyone may start the preset and a scenario, which are refused while a run is active.
    assert statuses() == [409, 409, 302, 302, 200, 302]
    client.force_login(User.objects.create(username="li"))
    assert statuses() == [409, 409, 403, 403, 200, 403]
    client.force_login(User.objects.create(username="bo", is_staff=True))
    assert statuses() == [409, 409, 403, 403, 200, 403]
    assert client.post(reverse("lab-start"), FORM).status_code == 403
    assert "Only staff with permission" in client.get(reverse("lab")).text
    run.refresh_from_db()
    assert (run.state, LabRun.objects.count(), sent) == (LabRun.State.WAITING, 1, [])


def test_form_builds_a_plan(client, staff, sent):
    client.force_login(staff)
    assert client.post(reverse("lab-start"), FORM).status_code == 302
    assert Plan(**LabRun.objects.get().plan).command() == SMALL.command()
    command = client.get(reverse("lab-command"), FORM).text
    assert SMALL.command() in command


@pytest.mark.parametrize(
    "wrong",
    [
        {"backends": []},
        {"at": "nan"},
        {"buyers": 20_000},
        {"processes": 32, "threads": 32},
    ],
    ids=str,
)
def test_invalid_form_shows_the_reason(client, staff, wrong):
    client.force_login(staff)
    page = client.post(reverse("lab-start"), {**FORM, **wrong})
    assert page.status_code == 400
    assert 'class="field-error"' in page.text or 'role="alert"' in page.text
    assert 'class="field-error"' in client.get(reverse("lab-command"), {**FORM, **wrong}).text
    if "threads" in wrong:
        headers = {"accept-language": "zh-hans"}
        chinese = client.post(reverse("lab-start"), {**FORM, **wrong}, headers=headers).text
        assert "线程总数（进程数 × 每个进程的线程数）最多为 150。" in chinese
    assert not LabRun.objects.exists()


def test_run_of_a_dead_worker_is_shown_as_failed(client, staff):
    waiting = runs.start(plan=SMALL, user=staff)
    with pytest.raises(runs.RunUnderWay):
        runs.start(plan=SMALL, user=staff)
    LabRun.objects.update(created_at=timezone.now() - timedelta(seconds=runs.WAIT_LIMIT + 1))
    dead = runs.start(plan=SMALL, user=staff)
    assert runs.get_run(waiting.pk).error == "No worker picked it up."
    alive = runs.lock_of(dead.pk)
    assert alive.acquire(blocking=False)
    LabRun.objects.filter(pk=dead.pk).update(state=LabRun.State.RUNNING)
    assert runs.get_run(dead.pk).state == LabRun.State.RUNNING
    alive.release()  # as a dead worker's lease ends
    assert "The worker crashed." in client.get(dead.get_absolute_url()).text
    chinese = client.get(dead.get_absolute_url(), headers={"accept-language": "zh-hans"}).text
    assert "worker 已崩溃。" in chinese
    runs.start(plan=SMALL, user=staff)


def test_viewers_write_nothing_until_a_run_is_overdue(client, db):
    run = LabRun.objects.create(plan=asdict(SMALL))
    pages = reverse("lab"), run.get_absolute_url()
    with CaptureQueriesContext(connection) as queries:
        assert [client.get(page).status_code for page in pages] == [200, 200]
    assert not [query for query in queries if query["sql"].startswith("UPDATE")]
    LabRun.objects.update(created_at=timezone.now() - timedelta(seconds=runs.WAIT_LIMIT + 1))
    assert "No worker picked it up." in client.get(pages[1]).text


def test_worker_whose_run_counts_as_crashed_ends_it(staff, monkeypatch):
    """Redis has lost its lock: another run may be under way, and two would distort each other."""
    monkeypatch.setattr(runs, "PROGRESS_SECONDS", 0)
    run = runs.start(plan=SMALL, user=staff)
    others = []

    def run_on(plan, show):
        locks["redis"].break_lock(runs.lock_of(run.pk).name)
        others.append(runs.start(plan=plan, user=staff))
        show({"event": "starting", "what": "buyers"})
        pytest.fail("it goes on")

    monkeypatch.setattr(runs, "run", run_on)
    tasks.execute(str(run.pk))
    ended = runs.get_run(run.pk)
    assert (ended.state, ended.error) == (LabRun.State.FAILED, "The worker crashed.")
    assert runs.get_run(others[0].pk).slot == 1


@pytest.mark.parametrize("scenario", [None, "holder-paused"])
def test_old_runs_are_deleted_except_the_newest_scenario(scenario, db):
    kind = LabRun.Kind.SCENARIO if scenario else LabRun.Kind.RUN
    of = {"kind": kind, "plan": {"scenario": scenario}, "state": LabRun.State.DONE, "slot": None}
    ages = (runs.KEEP * 0.9, runs.KEEP * 1.1, runs.KEEP * 1.2)
    recent, *_ = made = [LabRun.objects.create(**of) for _ in ages]
    for run, age in zip(made, ages, strict=True):
        LabRun.objects.filter(pk=run.pk).update(created_at=timezone.now() - age)
    tasks.prune_runs()
    assert [run.pk for run in LabRun.objects.all()] == [recent.pk]
    LabRun.objects.update(created_at=timezone.now() - ages[1])
    tasks.prune_runs()
    assert LabRun.objects.count() == (1 if scenario else 0), "the scenario list keeps the last"


def test_running_run_stops_at_its_next_progress(staff, monkeypatch):
    monkeypatch.setattr(runs, "PROGRESS_SECONDS", 0)
    plan = Plan(backends=("redis",), disciplines=("naive",), repeats=100)
    run = runs.start(plan=plan, user=staff)
    really_run = runs.run

    def run_and_stop(plan, show):
        def shown(event):
            runs.stop(run.pk)
            show(event)

        return really_run(plan, shown)

    monkeypatch.setattr(runs, "run", run_and_stop)
    tasks.execute(str(run.pk))
    stopped = runs.get_run(run.pk)
    assert (stopped.state, stopped.report, stopped.slot) == (LabRun.State.STOPPED, None, None)


def test_htmx_gets_the_figures_and_in_the_end_the_result(client, staff):
    """Stop lies outside of the figures, so that the focus stays on it."""
    run = runs.start(plan=SMALL, user=staff)
    client.force_login(staff)

    def part():
        return client.get(run.get_absolute_url(), headers={"HX-Request": "true"})

    waiting = "<title>Load test: waiting for a worker · Flash Sale</title>"
    assert part().text.startswith(waiting + '<div id="figures" hx-get=')
    assert "Stop" not in part().text
    assert "HX-Retarget" not in part()
    assert 'http-equiv="refresh"' in client.get(run.get_absolute_url()).text
    assert client.post(reverse("lab-stop", args=[run.pk])).status_code == 302
    tasks.execute(str(run.pk))  # the message comes all the same
    assert runs.get_run(run.pk).state == LabRun.State.STOPPED
    assert part()["HX-Retarget"] == "#run"
    assert part().text.startswith('<title>Load test: stopped · Flash Sale</title><div id="run"')
    assert "hx-get" not in part().text
    assert client.get(reverse("lab-run", args=[uuid.uuid4()])).status_code == 404


def test_report_explains_a_lost_update_and_proves_a_requested_fault(client, staff, monkeypatch):
    """The worker passes the request on in the first run of a lock that the fault can hit."""
    plan = replace(SMALL, disciplines=("naive", "conditional"), buyers=120, stock=100)
    run, as_dict, requested = runs.start(plan=plan, user=staff), runs.LoadProgress.as_dict, []
    meanwhile = []

    def saving(load):
        if not meanwhile and runs.get_run(run.pk).progress.get("over"):
            meanwhile.append(client.get(run.get_absolute_url()).text)
        now = load.run or {"sold": 0}
        if now["sold"] and (now["discipline"], requested) == ("conditional", []):
            requested.append(now["backend"])
            LabRun.objects.filter(pk=run.pk).update(requested_fault="kill-redis")
        return as_dict(load)

    monkeypatch.setattr(runs.LoadProgress, "as_dict", saving)
    tasks.execute(str(run.pk))
    done = runs.get_run(run.pk)
    control, locked, unlocked, hit = done.report["runs"]
    assert (bool(requested), done.requested_fault) == (True, "")
    assert (unlocked["faults"], hit["sold"], hit["faults"][0]["name"]) == ([], 100, "kill-redis")
    lost = control["lost_updates"]
    assert lost["units"] == control["sold"] > lost["counted"]
    assert locked["lost_updates"] is None
    page = client.get(run.get_absolute_url()).text
    assert check_sum(control) in page
    assert check_sum(control) in meanwhile[0], "the reason is told after the first run"
    assert page.count('class="source"') == 2
    for words in (
        *("WRITE = &quot;UPDATE inventory_stock SET quantity = %s", ">oversold</span>"),
        *('<span class="verdict ok">exact</span>', "Faults injected into Redis + conditional:"),
        *("<strong>Kill Redis</strong>", "ended by SIGKILL</q>"),
        "not the faults that were injected by hand",
    ):
        assert words in page
    assert page.index("Why it was oversold") < page.index("Units sold and initial stock")
    chinese = client.get(run.get_absolute_url(), headers={"accept-language": "zh-hans"}).text
    assert ">超卖</span>" in chinese
    assert ">强制终止 Redis</text>" in chinese
    assert ">已恢复</text>" in chinese
    assert re.search(r"<q>redis，进程 \d+ 已被 SIGKILL 终止</q>", chinese)
    LabRun.objects.update(report={**done.report, "runs": [control, locked]})
    page = client.get(run.get_absolute_url()).text
    assert page.count('<p class="buyers"') == 2, "of two guards, there is room for their buyers"
    assert f"bought beyond the stock: {control['oversold']}</li>" in page
    assert "data-player" in page
    assert '<span class="verdict ok">Reproduced</span>' in page
    LabRun.objects.update(report={**done.report, "runs": [locked]})
    page = client.get(run.get_absolute_url()).text
    assert '<span class="verdict ok">Exact</span>' in page, "nothing was to fail"
    assert "injected by hand" not in page


def test_failed_run_shows_its_error_and_frees_the_slot(client, staff, monkeypatch):
    def broken(plan, show):
        raise RuntimeError("the disk is full")

    run = runs.start(plan=SMALL, user=staff)
    monkeypatch.setattr(runs, "run", broken)
    with pytest.raises(RuntimeError):
        tasks.execute(str(run.pk))
    tasks.execute(str(run.pk))  # the message is delivered twice, and the run is over
    assert "the disk is full" in client.get(run.get_absolute_url()).content.decode()
    runs.start(plan=SMALL, user=staff)


def test_two_runs_can_be_compared(client, staff, sent):
    done = {"plan": asdict(SMALL), "state": LabRun.State.DONE, "slot": None}
    finished = LabRun.objects.create(**done, report=load_test(SMALL))
    finished.refresh_from_db()  # with lists, as JSON has no tuples
    client.force_login(staff)
    client.post(reverse("lab-again", args=[finished.pk]))
    other = LabRun.objects.exclude(pk=finished.pk).get()
    assert Plan(**other.plan).command() == SMALL.command()
    compare = f"{reverse('lab-compare')}?a={finished.pk}&b={other.pk}"
    assert client.get(compare).status_code == 404  # not yet
    measured = {**finished.report, "versions": {"load": 3.2, "cores": 2}}
    LabRun.objects.filter(pk=other.pk).update(**done, report=measured)
    assert compare.split("?")[0] in client.get(finished.get_absolute_url()).text
    client.logout()
    page = client.get(compare)
    assert page.text.count("Without a lock: 120,000 sold of 50") >= 2
    chinese = client.get(compare, headers={"accept-language": "zh-hans"}).text
    for text in (page.text, chinese):
        assert "<td>120,000 / 50<br>" in text
        assert text.count("<td>30,000</td>") >= 2
        assert ">120,000</text>" in text
    assert "Both runs had the same settings and the same injected faults" in page.text
    assert page.text.count("Load average before the test: 3.2 on 2 cores") == 1
    # The page of one run does not reveal the others.
    assert str(other.pk) not in client.get(finished.get_absolute_url()).text
    assert client.get(f"{reverse('lab-compare')}?a=1&b=2").status_code == 404


@pytest.mark.django_db
def test_run_with_a_paused_holder_leads_to_its_lesson(client):
    """Also if it was paused by hand, but not if the run ended first."""
    lesson = f'href="{reverse("learn-step", args=["fence"])}"'
    for name, at in (("pause-holder", 0.6), ("pause-holder", None), ("kill-redis", 0.6)):
        report = load_test(SMALL)
        for run in report["runs"]:
            run["lost_updates"] = None
        report["runs"][1]["faults"] = [{"name": name, "at": at, "proof": ""}]
        done = {"plan": asdict(SMALL), "state": LabRun.State.DONE, "slot": None}
        page = client.get(LabRun.objects.create(**done, report=report).get_absolute_url())
        assert (lesson in page.text) is (name == "pause-holder" and at is not None)


def test_scenario_result_needs_no_account(client, staff):
    report = {"versions": {}, "scenarios": [recorded()["results"]["setnx-without-expiry"]]}
    scenario_run = runs.start(plan="setnx-without-expiry", user=staff)
    LabRun.objects.update(state=LabRun.State.DONE, slot=None, report=report)
    page = client.get(scenario_run.get_absolute_url()).text
    assert page.count('<svg xmlns="http://www.w3.org/2000/svg" viewBox') >= 2
    assert "SETNX without an expiry" in page.split("<h1")[1].split("</h1>")[0]
    for (half, suffix), status in {
        ("broken", "svg"): 200,
        ("repaired", "png"): 200,
        ("middle", "svg"): 404,
        ("broken", "gif"): 404,
    }.items():
        chart = reverse("lab-chart", args=[scenario_run.pk, half, suffix])
        assert client.get(chart).status_code == status
    lesson = client.get(reverse("learn-step", args=["setnx"])).text
    assert f'href="{scenario_run.get_absolute_url()}">Newest run here' in lesson
    assert "Recorded on real servers" in lesson, "the recording stays"
    assert "SETNX without an expiry: reproduced" not in client.get(reverse("lab")).text
    client.force_login(staff)
    lab = client.get(reverse("lab")).text
    assert "SETNX without an expiry: reproduced" in lab
    assert f'<small class="quiet"><time datetime="{scenario_run.created_at.isoformat()}"' in lab
    assert client.post(reverse("lab-play", args=["earthquake"])).status_code == 404


def test_visitors_start_the_preset_until_their_limit(
    client, db, sent, settings, django_capture_on_commit_callbacks
):
    settings.LAB_GUEST_LIMIT = "2/minute"
    home = client.get("/").text
    preset = runs.OVERSELL_IN_TEN_SECONDS
    assert f"{preset.stock} phones. {preset.buyers} buyers." in home
    assert f'action="{reverse("lab-start")}"' in home
    for refused in (409, 429):
        with django_capture_on_commit_callbacks(execute=True):
            assert client.post(reverse("lab-start")).status_code == 302
        busy = client.post(reverse("lab-start"))
        assert busy.status_code == refused  # 409 does not count
        newest = LabRun.objects.latest("created_at").get_absolute_url()
        assert (f'href="{newest}"' in busy.text) is (refused == 409)
        LabRun.objects.update(state=LabRun.State.DONE, slot=None)
    assert client.post(reverse("lab-start")).status_code == 429
    assert sent == [str(run.pk) for run in LabRun.objects.order_by("created_at")]
    found = [(run.created_by, Plan(**run.plan).command()) for run in LabRun.objects.all()]
    assert found == [(None, preset.command())] * 2
    settings.LAB_GUEST_LIMIT = "100/minute"
    LabRun.objects.update(report=load_test(preset))
    result = client.get(newest).text
    for button in ("pause", "oversell"):
        assert f'name="preset" value="{button}"' in result
    assert f'href="{reverse("learn")}">Start the course' in result
    client.post(reverse("lab-start"), {"preset": "pause"})
    paused = LabRun.objects.latest("created_at")
    assert Plan(**paused.plan).command() == runs.PAUSED_HOLDER.command()


def test_second_press_adds_no_traffic_and_says_so(client, staff, monkeypatch):
    """It said “on its way” again."""
    monkeypatch.setattr(views, "demo_url", lambda: "http://127.0.0.1:1/")
    monkeypatch.setattr(
        tasks.send_traffic, "apply_async", lambda *_, task_id, **__: AsyncResult(task_id)
    )
    client.force_login(staff)
    first, second = (client.post(reverse("lab-traffic"), follow=True).text for _ in range(2))
    assert "Test traffic is on its way" in first
    assert "Nothing was sent: the previous test traffic has not ended yet." in second
    assert "Test traffic is on its way" not in second
