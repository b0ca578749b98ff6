"""/lab/: staff start a load test, anybody who has its address reads it."""

import uuid

import pytest
from django.urls import reverse

from loadtest import runs, tasks
from loadtest.models import LabRun
from loadtest.plan import Plan
from shop.models import User

SMALL = Plan(backends=("none", "redis"), disciplines=("naive",), buyers=60, stock=5)


@pytest.fixture
def staff(db):
    return User.objects.create(username="amy", is_staff=True)


@pytest.fixture
def sent(monkeypatch):
    """The ids of the load tests that were given to a worker."""
    ids = []
    monkeypatch.setattr(tasks.execute, "delay", ids.append)
    return ids


def test_only_staff_come_in(client, db, sent):
    for method, name in (("get", "lab"), ("post", "lab-start")):
        assert getattr(client, method)(reverse(name)).status_code == 302
    client.force_login(User.objects.create(username="li"))
    for method, name in (("get", "lab"), ("post", "lab-start")):
        assert getattr(client, method)(reverse(name)).status_code == 403
    assert not LabRun.objects.exists()
    assert sent == []


def test_one_at_a_time(client, staff, sent, django_capture_on_commit_callbacks):
    client.force_login(staff)
    with django_capture_on_commit_callbacks(execute=True):
        first = client.post(reverse("lab-start"))
    run = LabRun.objects.get()
    assert (first.status_code, first.url) == (302, run.get_absolute_url())
    assert sent == [str(run.pk)]
    assert client.post(reverse("lab-start")).status_code == 409
    assert client.get(reverse("lab-start")).status_code == 405
    assert LabRun.objects.get() == run


def test_a_run_whose_worker_died_does_not_block_the_lab_for_ever(staff, monkeypatch):
    dead = runs.start(plan=SMALL, user=staff)
    monkeypatch.setattr(runs, "TIME_LIMIT", 0)
    runs.start(plan=SMALL, user=staff)
    dead.refresh_from_db()
    assert dead.state == LabRun.State.FAILED


def test_the_result_opens_with_the_verdict_and_needs_no_account(client, staff):
    run = runs.start(plan=SMALL, user=staff)
    waiting = client.get(run.get_absolute_url()).content.decode()
    assert 'http-equiv="refresh"' in waiting
    assert "hx-trigger" in waiting
    tasks.execute(str(run.pk))
    page = client.get(run.get_absolute_url()).content.decode()
    assert "redis sold exactly 5." in page.split("<h1")[1].split("</h1>")[0]
    assert "<svg" in page
    assert "hx-trigger" not in page
    part = client.get(run.get_absolute_url(), headers={"HX-Request": "true"}).content.decode()
    assert part.startswith('<div id="run"')
    client.force_login(staff)
    assert "redis sold exactly 5." in client.get(reverse("lab")).content.decode()


def test_a_message_that_comes_twice_runs_once(staff, monkeypatch):
    run = runs.start(plan=SMALL, user=staff)
    calls = []
    monkeypatch.setattr(
        runs, "run", lambda plan, show: calls.append(plan.command()) or {"runs": []}
    )
    tasks.execute(str(run.pk))
    tasks.execute(str(run.pk))
    assert calls == [SMALL.command()]


def test_a_run_that_broke_off_says_so_and_makes_room(client, staff, monkeypatch):
    def broken(plan, show):
        raise RuntimeError("the disk is full")

    run = runs.start(plan=SMALL, user=staff)
    monkeypatch.setattr(runs, "run", broken)
    with pytest.raises(RuntimeError):
        tasks.execute(str(run.pk))
    assert "the disk is full" in client.get(run.get_absolute_url()).content.decode()
    runs.start(plan=SMALL, user=staff)


def test_an_unknown_address_is_not_found(client, db):
    assert client.get(reverse("lab-run", args=[uuid.uuid4()])).status_code == 404
