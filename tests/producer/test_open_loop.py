"""A producer refuses calls in a forked child, after its end and after a fatal error.

To permit a call on asyncio, an open producer only compares the running loop with
`ProducerLife.open_loop`. The tests check that this comparison permits no call that must be refused.
"""

from __future__ import annotations

import subprocess
import sys

import anyio
import pytest

from aioidem import DeliveryStatus, Producer, errors
from aioidem.broker import EmbeddedCluster

from .tools import REAL_LOOPS, bounded, producer_for, stored_values

_FORK = """
import asyncio, os, warnings
import aioidem
from aioidem.broker import EmbeddedCluster

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of fork() with threads

async def refused(producer):
    told = 0
    for call in (producer.send, producer.send_nowait):
        try:
            result = call("t", b"child")
            if call == producer.send:
                await asyncio.wait_for(result, 5)
        except aioidem.errors.ForkedProducerError:
            told += 1
    return told

loop = asyncio.new_event_loop()
cluster = EmbeddedCluster(transport="memory")
loop.run_until_complete(cluster.__aenter__())
producer = aioidem.Producer(cluster.bootstrap_servers, connector=cluster.connector)
loop.run_until_complete(producer.start())
loop.run_until_complete(producer.send("t", b"parent 1"))
child = os.fork()
if child == 0:
    told = 0
    try:
        told = loop.run_until_complete(refused(producer))
    finally:
        os._exit(told)
_, status = os.waitpid(child, 0)
loop.run_until_complete(producer.send("t", b"parent 2"))
loop.run_until_complete(producer.close())
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork()")
def test_a_child_that_runs_the_loop_of_its_parent_is_refused() -> None:
    """A forked child that runs the loop inherited from its parent cannot use the producer."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK], capture_output=True, check=False, text=True, timeout=30
    )
    assert done.stdout.strip() == "2", done.stderr


async def _refusals(producer: Producer) -> list[errors.KafkaError]:
    """Return the errors of send_nowait and send, for a good value and for two bad ones."""
    told = []
    for value in (b"good", 5, bytes(3_000_000)):
        with pytest.raises(errors.KafkaError) as caught:
            producer.send_nowait("t", value)  # type: ignore[arg-type]
        told.append(caught.value)
        with pytest.raises(errors.KafkaError) as caught:
            await producer.send("t", value)  # type: ignore[arg-type]
        told.append(caught.value)
    return told


@pytest.mark.anyio
@REAL_LOOPS
@bounded(10)
async def test_after_the_end_each_call_says_that_it_is_closed() -> None:
    """Each call of a closed producer raises ProducerClosed, whatever its arguments are."""
    async with EmbeddedCluster(transport="memory") as cluster:
        async with producer_for(cluster) as producer:
            await producer.send("t", b"first")
        for error in await _refusals(producer):
            assert isinstance(error, errors.ProducerClosed)
        assert stored_values(cluster) == [b"first"]


@pytest.mark.anyio
@REAL_LOOPS
@bounded(10)
async def test_after_a_fatal_error_each_call_raises_that_error() -> None:
    """After a fatal error each call raises that error, whatever its arguments are."""
    async with EmbeddedCluster(transport="memory") as cluster, producer_for(cluster) as producer:
        await producer.send("t", b"first")
        fatal = errors.InternalError("an end")
        producer._core.fatal(fatal)  # noqa: SLF001 - as the engine's parts do
        for error in await _refusals(producer):
            assert repr(error) == repr(fatal)
            assert error.status is DeliveryStatus.NOT_WRITTEN
        assert fatal.status is None


@pytest.mark.anyio
@REAL_LOOPS
@bounded(10)
async def test_after_the_background_task_each_call_is_refused() -> None:
    """A producer whose background task was cancelled takes no record."""
    async with EmbeddedCluster(transport="memory") as cluster, producer_for(cluster) as producer:
        await producer.send("t", b"first")
        background = producer._life.background  # noqa: SLF001 - as the end of a loop does
        assert background is not None
        background.cancel()
        with anyio.fail_after(5):
            await background.wait()
        for error in await _refusals(producer):
            assert isinstance(error, errors.ProducerClosed)
