"""A producer that has nothing to do uses no CPU time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.lowlevel import Task

from aioidem.broker import EmbeddedCluster

from .tools import bounded, producer_for, virtual_time

pytestmark = pytest.mark.anyio

HOUR = 3600.0


class Steps(trio.abc.Instrument):
    """Counts how often the event loop runs a task other than the one that makes this object."""

    def __init__(self) -> None:
        self._own = trio.lowlevel.current_task()
        self.count = 0

    def before_task_step(self, task: Task) -> None:
        """Count one run of a task."""
        self.count += task is not self._own


@bounded(3 * HOUR)
async def test_an_idle_producer_wakes_no_task_while_nothing_happens(transport: Any) -> None:
    """In an hour without a record and without a refresh of metadata, no task of a producer runs."""
    async with (
        EmbeddedCluster(transport=transport) as cluster,
        producer_for(cluster, metadata_max_age=24 * HOUR) as producer,
    ):
        await producer.send("t", b"value")
        await virtual_time(HOUR)  # idle connections are closed in this hour
        steps = Steps()
        trio.lowlevel.add_instrument(steps)
        await virtual_time(HOUR)
        trio.lowlevel.remove_instrument(steps)
        await producer.send("t", b"value")
    assert steps.count == 0
