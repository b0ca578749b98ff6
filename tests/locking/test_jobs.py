"""run_once, one process: what counts as the same run, and what is done about those that fail."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from django.urls import reverse
from django.utils import timezone

from locking import LockLost, LockMisuse, LockUnavailable, current_run, locks, run_once
from locking.backends.redis.backend import RedisBackend
from locking.jobs import run_once as jobs
from locking.models import JobRun
from tests.locking.two_backends import apart
from tests.shop.making import put_in_force

__all__ = ["apart"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.stores]

celery = Celery("test-jobs", set_as_current=False)
did: list[Any] = []
State = JobRun.State


@celery.task(name="tidy")
@run_once(attempts=3, backoff=10)
def tidy(*words: str) -> int:
    """Does what the test has put into `act`."""
    did.append((current_run().scheduled_for, current_run().attempt, *words))
    act()
    return len(did)


def nothing() -> None:
    """What a body does by default."""


act = nothing


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    did.clear()
    monkeypatch.setattr(jobs, "current_app", celery)


NOON = timezone.now().replace(minute=0, second=0, microsecond=0)


def noon(**later: float) -> datetime:
    """The last full hour, which is one hour to all that runs here, and so much later."""
    return NOON + timedelta(**later)


def deliver(scheduled_for: datetime, *words: str) -> Any:
    """A message arrives at a worker."""
    return tidy.apply(words, headers={jobs.HEADER: scheduled_for.isoformat()}).get()


def let_time_pass(**much: float) -> None:
    """The leases end, and the last messages are long ago."""
    for run in JobRun.objects.all():
        run.lease_until -= timedelta(**much)
        run.sent_at -= timedelta(**much)
        run.save()


class TestWhatIsTheSameRun:
    def test_a_copy_of_a_message_is_turned_away(self) -> None:
        assert deliver(noon()) == 1
        assert deliver(noon()) is None
        assert did == [(noon(), 1)]
        run = JobRun.objects.get()
        assert (run.state, run.attempts, run.duplicates, run.detail) == (State.DONE, 1, 1, "1")
        assert run.host
        assert run.duration is not None

    def test_the_same_moment_in_another_time_zone_is_the_same(self) -> None:
        deliver(noon().astimezone(UTC))
        deliver(noon().astimezone())
        assert len(did) == 1

    def test_another_time_or_other_arguments_are_another_run(self) -> None:
        deliver(noon())
        deliver(noon(seconds=1))
        deliver(noon(), "Kettle")
        deliver(noon(), "kettle")  # a collation would take it for the same
        assert len(did) == 4

    def test_it_can_be_called_as_a_function(self) -> None:
        with pytest.raises(LockMisuse, match="No run_once task"):
            tidy()  # reaches its body, which asks for its run
        assert not JobRun.objects.exists()

    def test_a_message_of_long_ago_is_refused(self) -> None:
        """Its row may have been deleted."""
        deliver(timezone.now() - jobs.OLDEST - timedelta(seconds=1))
        assert did == []
        assert not JobRun.objects.exists()


class TestWhileItRuns:
    def test_a_copy_that_comes_meanwhile_is_turned_away(self, apart, monkeypatch) -> None:
        copies = []

        def redelivered() -> None:
            monkeypatch.setattr(f"{__name__}.act", nothing)
            copies.append(apart(deliver, noon()).result(10))

        monkeypatch.setattr(f"{__name__}.act", redelivered)
        assert deliver(noon()) == 1
        assert copies == [None]

    def test_no_two_have_the_same_number_of_an_attempt(self, monkeypatch) -> None:
        """Somebody began, and was late, after this one had read that nobody had."""
        read = jobs._row_of

        def read_before(task: Any) -> JobRun | None:
            row = read(task)
            JobRun.objects.update(state=State.RUNNING, attempts=1, lease_until=timezone.now())
            return row

        monkeypatch.setattr(jobs, "_row_of", read_before)
        assert deliver(noon()) is None
        assert did == []
        assert JobRun.objects.get().duplicates == 1

    @pytest.mark.parametrize("backend", ["redis", "none"])
    def test_nobody_takes_over_before_the_lease_is_over(self, backend: str) -> None:
        """Where the lock excludes nobody, the row does: for as long as the task may take."""
        put_in_force(backend)
        deliver(noon())
        begun = timezone.now()
        JobRun.objects.update(state=State.RUNNING, ended_at=None)
        deliver(noon())
        assert len(did) == 1
        life = JobRun.objects.get().lease_until - begun
        expected = locks["redis"].ttl if backend == "redis" else jobs.TIME_LIMIT
        assert abs(life.total_seconds() - expected) < 30
        let_time_pass(seconds=expected + 30)
        deliver(noon())
        assert [attempt for _, attempt in did] == [1, 2]

    def test_whoever_was_replaced_finishes_nothing(self, monkeypatch, caplog) -> None:
        effects = []

        def late() -> None:
            JobRun.objects.update(attempts=2)  # another machine has taken over
            with pytest.raises(LockLost):
                current_run().check()
            with current_run().finish():
                effects.append("late")

        monkeypatch.setattr(f"{__name__}.act", late)
        assert deliver(noon()) is None
        assert effects == []
        assert "attempt 1 was taken over" in caplog.text
        assert JobRun.objects.get().state == State.RUNNING

    def test_another_lock_that_it_lost_is_an_error_like_others(self, monkeypatch) -> None:
        def act() -> None:
            raise LockLost("the sale's")

        monkeypatch.setattr(f"{__name__}.act", act)
        with pytest.raises(LockLost, match="the sale's"):
            deliver(noon())
        assert JobRun.objects.get().state == State.DUE

    def test_finish_writes_both_or_neither(self, monkeypatch) -> None:
        def breaks() -> None:
            with current_run().finish():
                JobRun.objects.create(
                    pk="effect", scheduled_for=noon(), lease_until=noon(), sent_at=noon()
                )
                raise OSError("disk full")

        monkeypatch.setattr(f"{__name__}.act", breaks)
        with pytest.raises(OSError, match="disk full"):
            deliver(noon())
        assert JobRun.objects.get().state == State.DUE

        def works() -> None:
            with current_run().finish():
                pass

        let_time_pass(seconds=30)
        monkeypatch.setattr(f"{__name__}.act", works)
        assert deliver(noon()) == 2
        run = JobRun.objects.get()
        assert (run.state, run.attempts, run.detail) == (State.DONE, 2, "2")


class TestAfterAnError:
    @pytest.fixture(autouse=True)
    def _broken(self, monkeypatch) -> None:
        def act() -> None:
            raise ValueError("no such sale")

        monkeypatch.setattr(f"{__name__}.act", act)

    def test_it_waits_longer_each_time_and_then_gives_up(self) -> None:
        for wait in (10, 20, None):
            with pytest.raises(ValueError, match="no such sale"):
                deliver(noon())
            run = JobRun.objects.get()
            assert run.detail == "ValueError: no such sale"
            left = (run.lease_until - timezone.now()).total_seconds()
            if wait:
                assert run.state == State.DUE
                assert wait - 5 < left <= wait
                deliver(noon())  # a copy that comes before its time
                let_time_pass(seconds=wait)
            else:
                assert run.state == State.FAILED
        assert deliver(noon()) is None
        assert [attempt for _, attempt in did] == [1, 2, 3]

    def test_one_that_kills_its_worker_is_given_up_too(self, caplog) -> None:
        with pytest.raises(ValueError, match="no such sale"):
            deliver(noon())
        JobRun.objects.update(state=State.RUNNING, attempts=3)
        let_time_pass(minutes=1)
        deliver(noon())
        assert JobRun.objects.get().state == State.FAILED
        assert "given up after 3 attempts" in caplog.text
        assert len(did) == 1

    def test_without_its_lock_nothing_runs(self, monkeypatch) -> None:
        def silent(*args: object) -> None:
            raise LockUnavailable

        monkeypatch.setattr(RedisBackend, "acquire", silent)
        with pytest.raises(LockUnavailable):
            deliver(noon())
        assert did == []
        assert JobRun.objects.get().state == State.DUE


class TestSendingAgain:
    @pytest.fixture
    def sent(self, monkeypatch) -> list[Any]:
        sent: list[Any] = []
        monkeypatch.setattr(
            tidy, "apply_async", lambda *args, headers: sent.append((*args, headers))
        )
        return sent

    def test_what_nobody_began_or_finished(self, sent) -> None:
        jobs.announce("a task that is gone", [], {}, noon(seconds=-1))
        jobs.announce("tidy", ["Kettle"], {}, noon())
        deliver(noon(seconds=1))
        JobRun.objects.filter(state=State.DONE).update(state=State.RUNNING)
        deliver(noon(seconds=2))
        assert jobs.resend_unfinished() == 0
        let_time_pass(minutes=1)
        assert jobs.resend_unfinished() == 2
        assert jobs.resend_unfinished() == 0, "there are messages under way"
        assert sent == [
            (["Kettle"], {}, {jobs.HEADER: noon().isoformat()}),
            ([], {}, {jobs.HEADER: noon(seconds=1).isoformat()}),
        ]

    def test_what_nobody_finished_within_a_day_is_given_up(self, sent, caplog) -> None:
        jobs.announce("tidy", [], {}, timezone.now() - jobs.OLDEST)
        assert jobs.resend_unfinished() == 0
        assert JobRun.objects.get().state == State.FAILED
        assert "1 job runs were not finished" in caplog.text

    def test_history_ends(self) -> None:
        assert jobs.KEEP > jobs.OLDEST
        for age in (jobs.KEEP, jobs.OLDEST, timedelta()):
            jobs.announce("tidy", [], {}, timezone.now() - age)
        assert jobs.prune_runs() == 1
        assert [run.task for run in JobRun.objects.all()] == ["tidy", "tidy"]


def test_the_admin_shows_runs_and_nobody_edits_them(admin_client) -> None:
    deliver(noon(), "Kettle")
    page = admin_client.get(reverse("admin:locking_jobrun_changelist")).content.decode()
    assert "tidy" in page
    assert "Kettle" in page
    run = JobRun.objects.get()
    assert (
        admin_client.post(reverse("admin:locking_jobrun_delete", args=[run.pk])).status_code == 403
    )
    assert admin_client.post(reverse("admin:locking_jobrun_add")).status_code == 403
