"""A real Celery worker is killed in the middle of a load test."""

import os
import signal
import subprocess
import sys

import pytest
from django.conf import settings

from devservers.faults.waiting import until
from loadtest.load.plan import Plan
from loadtest.models import LabRun
from loadtest.web import runs, tasks
from shop.models import User
from tests.loadtest.lab import family

LONG = Plan(backends=("redis",), disciplines=("naive",), repeats=100)


@pytest.fixture
def worker(database_url, monkeypatch, tmp_path):
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    command = ["-m", "celery", "-A", "shop", "--quiet", "worker", "--concurrency=1", "-l", "error"]
    process = subprocess.Popen(
        [sys.executable, *command], cwd=settings.BASE_DIR, start_new_session=True
    )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_run_of_a_killed_worker_ends(worker, tmp_path):
    run = runs.start(plan=LONG, user=User.objects.create(username="amy", is_staff=True))
    tasks.execute.delay(str(run.pk))
    until(lambda: runs.get_run(run.pk).progress.get("done", 0) > 0, "sales", seconds=120)
    assert family(tmp_path)
    assert runs.get_run(run.pk).state == LabRun.State.RUNNING
    os.killpg(worker.pid, signal.SIGKILL)
    until(lambda: runs.get_run(run.pk).state == LabRun.State.FAILED, "the verdict", seconds=120)
    assert runs.get_run(run.pk).error == "The worker crashed."
    until(lambda: not family(tmp_path), "their end", seconds=120)
    runs.start(plan=LONG, user=run.created_by)
