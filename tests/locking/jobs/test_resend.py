"""Unfinished runs are sent again, with all that belongs to their messages."""

from datetime import datetime
from typing import Any

import pytest
from celery import Celery
from celery.app import app_or_default
from celery.contrib.testing.worker import start_worker
from django.conf import settings

from devservers.faults.waiting import until
from locking.jobs import celery_queue, runs
from locking.jobs.run_once import current_run, run_once
from locking.models import JobRun
from tests.locking.jobs.test_run_once import (
    State,
    _clean,
    deliver,
    let_time_pass,
    noon,
    tidy,
)

__all__ = ["_clean"]
pytestmark = [pytest.mark.django_db, pytest.mark.stores]


@pytest.fixture
def current_app_kept():
    """Restore the current application: a worker in this process makes its own the current one."""
    before = app_or_default()
    yield
    before.set_current()
    before.set_default()


class TestResend:
    @pytest.fixture
    def sent(self, monkeypatch) -> list[Any]:
        sent: list[Any] = []
        monkeypatch.setattr(
            tidy, "apply_async", lambda *args, **options: sent.append((*args, options))
        )
        return sent

    @pytest.mark.usefixtures("time_zones")
    def test_unfinished_runs_are_sent_again_once(self, sent) -> None:
        runs.register("a task that is gone", [], {}, noon(seconds=-1))
        runs.register("tidy", ["Kettle"], {}, noon(), options={"expires": 7200})
        deliver(noon(seconds=1))
        JobRun.objects.filter(state=State.DONE).update(state=State.RUNNING)
        deliver(noon(seconds=2))
        assert runs.resend_unfinished() == 0
        let_time_pass(minutes=1)
        assert runs.resend_unfinished() == 2
        assert runs.resend_unfinished() == 0, "there are messages under way"
        assert [args for args, *_ in sent] == [["Kettle"], []]
        times = [options["headers"][runs.HEADER] for *_, options in sent]
        assert [*map(datetime.fromisoformat, times)] == [noon(), noon(seconds=1)]
        for args, kwargs, options in sent:
            tidy.apply(args, kwargs, headers=options["headers"])
        assert JobRun.objects.filter(state=State.DONE).count() == 3
        assert JobRun.objects.count() == 4

    def test_runs_that_cannot_be_sent_keep_no_other_one_from_its_turn(
        self, sent, monkeypatch
    ) -> None:
        """More of them than one call takes, and older; the control: the call takes no more."""
        monkeypatch.setattr(runs, "RESEND_BATCH", 1)
        runs.register("a task that is gone", [], {}, noon(seconds=-1))
        runs.register("tidy", ["Kettle"], {}, noon())
        counts = []
        for _ in range(2):
            let_time_pass(minutes=1)
            counts.append(runs.resend_unfinished())
        assert counts == [0, 1]

    def test_run_whose_lock_is_held_is_neither_sent_again_nor_failed(self, sent, apart) -> None:
        """Its lease in the row is over, but a worker renews the lock, even for a day."""
        counts = []

        def long() -> None:
            for scheduled_for in (noon(), noon() - 2 * runs.MAX_MESSAGE_AGE):
                let_time_pass(minutes=1)
                JobRun.objects.update(scheduled_for=scheduled_for)
                counts.append(apart(runs.resend_unfinished).result(10))
            current_run().check()

        assert deliver(noon(), act=long) == 1
        assert counts == [0, 0]
        assert JobRun.objects.get().state == State.DONE
        # As if the worker had died.
        JobRun.objects.update(state=State.RUNNING, scheduled_for=noon())
        let_time_pass(minutes=1)
        assert runs.resend_unfinished() == 1

    @pytest.mark.parametrize(
        ("scheduled_for", "options", "why"),
        [
            (noon(), {"expires": 0}, "expired before it was finished"),
            (noon(), {"expires": datetime(2026, 1, 1)}, "expired before it was finished"),
            (noon() - runs.MAX_MESSAGE_AGE, {}, "1 job runs failed"),
        ],
    )
    @pytest.mark.usefixtures("time_zones")
    def test_run_that_is_too_old_fails(self, sent, caplog, scheduled_for, options, why) -> None:
        runs.register("tidy", [], {}, scheduled_for, options=options)
        let_time_pass(minutes=1)
        assert runs.resend_unfinished() == 0
        assert JobRun.objects.get().state == State.FAILED
        assert why in caplog.text

    @pytest.mark.django_db(transaction=True)
    def test_worker_gets_the_run_again_as_it_was_sent(self, monkeypatch, current_app_kept) -> None:
        """With a real broker, from which a worker reads queue, priority, expiry and headers."""
        received = []
        broker = Celery("as-sent", broker=settings.REDIS_URL, set_as_current=False)

        @broker.task(shared=False, bind=True, name="as-sent")
        @run_once(backoff=0)
        def as_sent(self: Any) -> None:
            info, sent = self.request.delivery_info, self.request
            expires = datetime.fromisoformat(str(sent.expires))
            received.append((info["routing_key"], info["priority"], expires, sent.headers["a"]))
            if len(received) == 1:
                raise ValueError("once more")

        monkeypatch.setattr(celery_queue, "current_app", broker)
        with start_worker(broker, perform_ping_check=False, pool="solo", queues=["as-sent-slow"]):
            options = {"queue": "as-sent-slow", "priority": 7, "expires": 600}
            as_sent.apply_async(headers={"a": "b"}, **options)
            until(lambda: JobRun.objects.filter(ended_at__isnull=False).exists(), "the failure")
            let_time_pass(minutes=1)
            assert runs.resend_unfinished() == 1
            until(lambda: JobRun.objects.filter(state=State.DONE).exists(), "the second attempt")
        first, again = received
        assert first == again
        assert (first[0], first[1], first[3]) == ("as-sent-slow", 7, "b")
