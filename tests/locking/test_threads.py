"""The helper thread that runs the calls of asyncio tasks."""

import asyncio
import threading

import pytest

from devservers.faults.waiting import WAIT_TIMEOUT, until
from locking.threads import HelperThread
from tests.locking.held_call import HeldCall
from tests.locking.scripted import scripted


def test_call_of_a_cancelled_task_is_finished_and_the_thread_goes_on() -> None:
    helper, call = HelperThread("test"), HeldCall()

    async def cancel() -> str:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: failures.append(context)
        )
        task = asyncio.create_task(helper.run(call))
        await asyncio.sleep(0)  # lets it start
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        call.end()
        answer = await helper.run(lambda: "next")
        assert not failures
        return answer

    assert asyncio.run(cancel()) == "next"
    assert call.count == 1


def test_thread_survives_a_loop_that_ends_before_the_reply() -> None:
    helper, call = HelperThread("test"), HeldCall()

    async def leave() -> None:
        asyncio.create_task(helper.run(call))  # noqa: RUF006
        await asyncio.sleep(0)

    asyncio.run(leave())
    call.end()
    assert helper.submit(lambda: "next").result(WAIT_TIMEOUT) == "next"


def test_closed_store_leaves_no_thread_behind() -> None:
    store, before = scripted(), set(threading.enumerate())

    async def use() -> None:
        async with store.lock("a"):
            pass

    for _ in range(2):  # the second time, it starts another one
        asyncio.run(use())
        started = set(threading.enumerate()) - before
        (helper,) = [one for one in started if one.name == "lock-helper-scripted"]
        store.close()
        until(lambda one=helper: not one.is_alive(), "the end of the thread")
