"""Records that waited for metadata get their partitions in slices, at most two per loop turn.

Records keep the order of the send calls, also those that are sent between two slices. The test
counts turns of the event loop; benchmarks/hostile_answers.py measures the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest

from aioidem._engine.assigning import SLICE
from aioidem.broker import EmbeddedCluster
from aioidem.partitioner import murmur2

from .tools import REAL_LOOPS, bounded, producer_for, stored_values

pytestmark = [pytest.mark.anyio, REAL_LOOPS]

MANY = 5 * SLICE + 1
KEYS = 11


class Turns:
    """A counter of the loop's turns, and of the partitioner's calls in each turn."""

    def __init__(self) -> None:
        self.now = 0
        self.calls: Counter[int] = Counter()

    async def run(self) -> None:
        """Count turns until cancelled."""
        while True:
            self.now += 1
            await anyio.lowlevel.checkpoint()

    def __call__(self, key: bytes | None, everything: Sequence[int], _: Sequence[int], /) -> int:
        self.calls[self.now] += 1
        return everything[murmur2(key or b"") % len(everything)]


@bounded(60)
async def test_no_turn_of_the_loop_assigns_more_than_a_slice_and_keys_keep_their_order() -> None:
    turns = Turns()
    async with EmbeddedCluster(transport="memory") as cluster:
        cluster.create_topic("t", partitions=3)
        async with producer_for(cluster, partitioner=turns) as producer:

            def send(number: int) -> None:
                producer.send_nowait("t", b"%d" % number, key=b"%d" % (number % KEYS))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(turns.run)
                for number in range(MANY):
                    send(number)
                while not turns.calls:  # if none ever came, `bounded` would end the test
                    await anyio.lowlevel.checkpoint()
                assert turns.calls.total() < MANY, "one turn does not assign all records"
                for number in range(MANY, MANY + 100):
                    send(number)
                    await anyio.lowlevel.checkpoint()
                counts = await producer.flush()
                tasks.cancel_scope.cancel()
        assert counts.acked <= MANY + 100
        assert producer.statistics().records_acked == MANY + 100
        # One turn can assign two slices: one as the Metadata answer arrives, and one in the next
        # poll of the engine.
        assert max(turns.calls.values()) <= 2 * SLICE
        assert turns.calls.total() == MANY + 100
        for partition in range(3):
            numbers = [int(value) for value in stored_values(cluster, "t", partition)]
            for key in range(KEYS):
                of_key = [number for number in numbers if number % KEYS == key]
                assert of_key == sorted(of_key)
