"""`run_once` in one process: duplicates, takeovers, failed attempts and lost messages."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.signals import before_task_publish
from django.db import connections
from django.utils import timezone

from locking import LockLost, LockMisuse, LockUnavailable, locks, policy
from locking.backends.redis.backend import RedisBackend
from locking.jobs import celery_queue, runs, times
from locking.jobs.run_once import TIME_LIMIT, current_run, run_once
from locking.models import JobRun

pytestmark = [pytest.mark.django_db, pytest.mark.stores]

celery = Celery("test-jobs", broker="memory://", set_as_current=False)
executed: list[Any] = []
State = JobRun.State

body: Callable[[], None] | None = None
"""What `tidy` calls; see `deliver`."""


@celery.task(name="tidy")
@run_once(attempts=3, backoff=10)
def tidy(*words: str) -> int:
    executed.append((current_run().scheduled_for, current_run().attempt, *words))
    if body is not None:
        body()
    return len(executed)


@celery.task(name="odd")
@run_once
def odd() -> str:
    return "\udcff\0"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    executed.clear()
    monkeypatch.setitem(globals(), "body", None)
    monkeypatch.setattr(celery_queue, "current_app", celery)


NOON = timezone.now().replace(minute=0, second=0, microsecond=0)


def noon(**later: float) -> datetime:
    """Return the last full hour, the same during the whole session, plus `later`."""
    return NOON + timedelta(**later)


def deliver(
    scheduled_for: datetime, *words: str, act: Callable[[], None] | None = None
) -> int | None:
    """Deliver a message to a worker, whose task calls `act`."""
    global body
    body = act
    return tidy.apply(words, headers={runs.HEADER: scheduled_for.isoformat()}).get()


def let_time_pass(**duration: float) -> None:
    """Shift the times of all rows into the past."""
    for run in JobRun.objects.all():
        run.lease_until -= timedelta(**duration)
        run.sent_at -= timedelta(**duration)
        run.save()


class TestIdentity:
    @pytest.mark.usefixtures("time_zones")
    def test_duplicate_message_is_turned_away(self) -> None:
        assert deliver(noon()) == 1
        assert deliver(noon()) is None
        assert executed == [(times.stored(noon()), 1)]
        run = JobRun.objects.get()
        assert (run.state, run.attempts, run.duplicates, run.detail) == (State.DONE, 1, 1, "1")
        assert run.host
        assert run.duration is not None
        deliver(noon().astimezone(UTC))
        deliver(noon().astimezone())
        assert len(executed) == 1, "another time zone is another run"

    def test_other_time_or_arguments_are_another_run(self) -> None:
        for later, words in ((0, ()), (1, ()), (0, ["Kettle"]), (0, ["kettle"])):
            deliver(noon(seconds=later), *words)  # the last two are equal under some collations
        assert len(executed) == 4

    def test_direct_call_only_calls_the_function(self) -> None:
        with pytest.raises(LockMisuse, match="No run_once task"):
            tidy()  # the body calls current_run()
        assert not JobRun.objects.exists()

    def test_direct_call_in_another_run_only_calls_the_function(self) -> None:
        deliver(noon(), act=run_once(lambda: executed.append("called")))
        assert (executed, JobRun.objects.get().duplicates) == ([(noon(), 1), "called"], 0)

    @pytest.mark.parametrize("wrong", [{"ttl": 0}, {"ttl": "5"}, {"backoff": -1}, {"attempts": 0}])
    def test_wrong_options_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(LockMisuse, match="give"):
            run_once(**wrong)

    def test_message_older_than_a_day_is_refused(self) -> None:
        """Its row may have been deleted."""
        deliver(timezone.now() - runs.MAX_MESSAGE_AGE - timedelta(seconds=1))
        assert executed == []
        assert not JobRun.objects.exists()


class TestWhileItRuns:
    def test_duplicate_is_turned_away_while_the_run_lasts(self, apart) -> None:
        copies = []

        def redelivered() -> None:
            copies.append(apart(deliver, noon()).result(30))

        assert deliver(noon(), act=redelivered) == 1
        assert copies == [None]

    def test_attempt_number_is_claimed_only_once(self, monkeypatch) -> None:
        """Another machine started the run between the read and the claim of this one."""

        def register_and_start(*args: Any, **options: Any) -> JobRun:
            row = runs.register(*args, **options)
            JobRun.objects.update(state=State.RUNNING, attempts=1, lease_until=timezone.now())
            return row

        monkeypatch.setattr("locking.jobs.run_once.register", register_and_start)
        assert deliver(noon()) is None
        assert executed == []
        assert JobRun.objects.get().duplicates == 1

    @pytest.mark.parametrize("backend", ["redis", "none"])
    def test_run_is_taken_over_only_after_its_lease(self, backend: str) -> None:
        """Under a lock that excludes no other machine, the row excludes it for the task's limit."""
        policy.switch(backend=backend, force=True)
        deliver(noon())
        started = timezone.now()
        JobRun.objects.update(state=State.RUNNING, ended_at=None)
        deliver(noon())
        assert len(executed) == 1
        lease = JobRun.objects.get().lease_until - started
        expected = locks["redis"].ttl if backend == "redis" else TIME_LIMIT
        assert abs(lease.total_seconds() - expected) < 30
        let_time_pass(seconds=expected + 30)
        deliver(noon())
        assert [attempt for _, attempt in executed] == [1, 2]

    def test_replaced_attempt_finishes_nothing(self, caplog) -> None:
        def late() -> None:
            JobRun.objects.update(attempts=2)  # another machine has taken over
            with pytest.raises(LockLost):
                current_run().check()
            with current_run().finish():
                pytest.fail("a late attempt had an effect")

        assert deliver(noon(), act=late) is None
        assert "attempt 1 was taken over" in caplog.text
        assert JobRun.objects.get().state == State.RUNNING

    def test_other_lost_lock_is_an_ordinary_error(self) -> None:
        with pytest.raises(LockLost, match="the sale's"):
            deliver(noon(), act=Mock(side_effect=LockLost("the sale's")))
        assert JobRun.objects.get().state == State.DUE

    def test_finish_commits_the_effect_with_the_run(self) -> None:
        def breaks() -> None:
            with current_run().finish():
                JobRun.objects.create(
                    pk="effect", scheduled_for=noon(), lease_until=noon(), sent_at=noon()
                )
                raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            deliver(noon(), act=breaks)
        assert JobRun.objects.get().state == State.DUE

        def works() -> None:
            with current_run().finish():
                pass

        let_time_pass(seconds=30)
        assert deliver(noon(), act=works) == 2
        run = JobRun.objects.get()
        assert (run.state, run.attempts, run.detail) == (State.DONE, 2, "2")

    @pytest.mark.django_db(transaction=True)
    def test_finish_uses_the_database_of_the_runs(self, settings, monkeypatch) -> None:
        """`default` has no transaction then, and an error undoes the end of the run."""
        monkeypatch.setitem(connections.settings, "runs", {**connections.settings["default"]})
        blocks = []

        def where(model: object, **hints: object) -> str | None:
            return "runs" if model is JobRun else None

        def breaks() -> None:
            with current_run().finish():
                blocks.append([connections[alias].in_atomic_block for alias in ("runs", "default")])
                raise OSError("disk full")

        settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_read=where, db_for_write=where)]
        connections["runs"].connect()  # as only `default` may be opened by a query of a test
        try:
            with pytest.raises(OSError, match="disk full"):
                deliver(noon(), act=breaks)
        finally:
            connections["runs"].close()
            del connections["runs"]
        assert blocks == [[True, False]]
        assert JobRun.objects.using("default").get().state == State.DUE


def refuse() -> None:
    raise ValueError("no such sale \0")


class TestAfterAnError:
    def test_attempts_back_off_and_then_fail(self) -> None:
        for wait in (10, 20, None):
            with pytest.raises(ValueError, match="no such sale"):
                deliver(noon(), act=refuse)
            run = JobRun.objects.get()
            assert run.detail == "ValueError: no such sale \\0"
            left = (run.lease_until - timezone.now()).total_seconds()
            if wait:
                assert run.state == State.DUE
                assert wait / 2 < left <= wait
                deliver(noon())  # a duplicate before the end of the backoff
                let_time_pass(seconds=wait)
            else:
                assert run.state == State.FAILED
        assert deliver(noon()) is None
        assert [attempt for _, attempt in executed] == [1, 2, 3]

    def test_run_that_kills_its_workers_fails(self, caplog) -> None:
        with pytest.raises(ValueError, match="no such sale"):
            deliver(noon(), act=refuse)
        JobRun.objects.update(state=State.RUNNING, attempts=3)
        let_time_pass(minutes=1)
        deliver(noon())
        assert JobRun.objects.get().state == State.FAILED
        assert "given up after 3 attempts" in caplog.text
        assert len(executed) == 1

    def test_result_that_no_database_keeps_is_no_error(self) -> None:
        """Its effect would be repeated."""
        assert odd.apply().get() == "\udcff\0"
        run = JobRun.objects.get()
        assert (run.state, run.detail) == (State.DONE, "\\udcff\\0")

    def test_run_does_not_start_without_its_lock(self, monkeypatch) -> None:
        monkeypatch.setattr(RedisBackend, "acquire", Mock(side_effect=LockUnavailable))
        with pytest.raises(LockUnavailable):
            deliver(noon())
        assert executed == []
        assert JobRun.objects.get().state == State.DUE


class TestMessageWithoutScheduledTime:
    """As sent by a program that does not know the task."""

    def test_message_identifies_the_run_also_when_it_is_resent(self, monkeypatch) -> None:
        global body
        body = refuse
        with pytest.raises(ValueError, match="no such sale"):
            tidy.apply(["Kettle"], task_id="m-1").get()
        body = None
        let_time_pass(minutes=1)
        monkeypatch.setattr(tidy, "apply_async", tidy.apply)
        assert runs.resend_unfinished() == 1
        for message in ("m-1", "m-1", "m-2"):
            tidy.apply(["Kettle"], task_id=message)
        assert [attempt for _, attempt, _ in executed] == [1, 2, 1]
        assert sorted(run.duplicates for run in JobRun.objects.all()) == [0, 2]


class TestMessageOfDelay:
    @pytest.fixture
    def publish(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., dict[str, Any]]]:
        """Send messages with `apply_async`; each call returns what its worker gets."""
        monkeypatch.setattr("locking.jobs.celery_queue.current_app", celery)
        sent: list[dict[str, Any]] = []

        def record(headers: dict[str, Any], **message: Any) -> None:
            own = {name: headers[name] for name in (runs.HEADER, runs.RUN)}
            sent.append({"headers": own, "task_id": headers["id"]})

        def publish(**options: Any) -> dict[str, Any]:
            tidy.apply_async(**options)
            return sent[-1]

        before_task_publish.connect(record)
        yield publish
        before_task_publish.disconnect(record)

    def test_countdown_of_more_than_a_day_is_not_too_old(self, publish, monkeypatch) -> None:
        day = timedelta(hours=25)
        sent = [publish(countdown=day.total_seconds()), publish(eta=datetime.now() + day)]
        at_last = times.now() + day
        monkeypatch.setattr(times, "now", lambda: at_last)
        for message in sent:
            tidy.apply(**message).get()
        assert len(executed) == 2
        assert executed[0][0] > NOON + timedelta(hours=24)

    def test_equal_messages_of_one_moment_are_two_runs(self, publish, monkeypatch) -> None:
        now = times.now()
        monkeypatch.setattr(times, "now", lambda: now)
        messages = [publish(), publish()]
        for message in (*messages, *messages):  # each of them delivered twice
            tidy.apply(**message).get()
        assert len(executed) == 2
