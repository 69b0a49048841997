"""A signal wakes every task that waits for it; once it is set, no task has to wait."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from aioidem._network.waiting import Wakeup, new_signal


async def passes(count: int = 5) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


@pytest.mark.anyio
async def test_it_is_anyios_event_but_on_asyncio(anyio_backend_name: str) -> None:
    """`new_signal` returns anyio's Event on trio, and a faster signal on asyncio."""
    assert isinstance(new_signal(), anyio.Event) != (anyio_backend_name == "asyncio")


@pytest.mark.anyio
async def test_all_waiting_tasks_go_on_and_later_ones_do_not_wait() -> None:
    """Setting a signal wakes every waiting task, and a task that comes later does not wait."""
    signal = new_signal()
    gone: list[int] = []

    async def wait(number: int) -> None:
        await signal.wait()
        gone.append(number)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(wait, number)
            await passes()
            assert not gone
            signal.set()
            signal.set()
        assert sorted(gone) == [0, 1, 2]
        await signal.wait()


@pytest.mark.anyio
async def test_a_cancelled_waiter_takes_no_other_with_it() -> None:
    """Cancelling a task that waits for a signal does not affect another one."""
    signal = new_signal()
    gone: list[str] = []

    async def wait() -> None:
        await signal.wait()
        gone.append("waited")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            with anyio.move_on_after(0.01) as scope:
                await signal.wait()
            assert scope.cancelled_caught
            assert not gone
            signal.set()
    assert gone == ["waited"]


def test_a_waiter_cancelled_as_it_is_woken_is_cancelled() -> None:
    """A task that is cancelled after its signal was set, but before it runs, is cancelled."""

    async def cancelled() -> None:
        signal = new_signal()
        task = asyncio.ensure_future(signal.wait())
        await passes()
        signal.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())


@pytest.mark.anyio
async def test_a_wakeup_is_lowered_by_waiting() -> None:
    """`Wakeup.wait` resets the wakeup, so that the next wait needs another `set`."""
    wakeup = Wakeup()
    wakeup.set()
    with anyio.fail_after(10):
        await wakeup.wait()
    with anyio.move_on_after(0.01) as scope:
        await wakeup.wait()
    assert scope.cancelled_caught
    wakeup.set()
    with anyio.fail_after(10):
        await wakeup.wait()
