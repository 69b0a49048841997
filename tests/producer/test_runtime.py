"""Which event loop runs: asyncio's or trio's, each alone, or trio as a guest on asyncio's."""

from __future__ import annotations

import asyncio

import anyio
import pytest
import trio

from aioidem import errors
from aioidem._producer.runtime import loop_clock, on_asyncio

from .tools import REAL_LOOPS


@REAL_LOOPS
@pytest.mark.anyio
async def test_the_loop_that_runs_is_named_and_its_clock_is_anyios(anyio_backend_name: str) -> None:
    assert on_asyncio() == (anyio_backend_name == "asyncio")
    before = anyio.current_time()
    assert before <= loop_clock()() <= anyio.current_time()


def test_a_trio_task_is_trios_where_trio_is_a_guest_on_asyncios_loop() -> None:
    async def host() -> tuple[bool, bool]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[bool] = loop.create_future()

        async def guest() -> bool:
            await trio.lowlevel.checkpoint()
            return on_asyncio()

        trio.lowlevel.start_guest_run(
            guest,
            run_sync_soon_threadsafe=loop.call_soon_threadsafe,
            done_callback=lambda outcome: ended.set_result(outcome.unwrap()),
        )
        seen_by_the_guest = await asyncio.wait_for(ended, 10)
        return on_asyncio(), seen_by_the_guest

    assert asyncio.run(host()) == (True, False)


def test_without_a_loop_it_is_an_error_of_ours() -> None:
    for ask in (on_asyncio, loop_clock):
        with pytest.raises(errors.InternalError, match="no event loop of asyncio or trio"):
            ask()
