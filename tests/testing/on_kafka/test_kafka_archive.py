"""Brokers of the tests start with the archive of classes, and their tools print what they did."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio import to_thread

from aioidem._testing.kafka_archive import find_archive
from aioidem._testing.kafka_cluster import JVM_OPTIONS
from aioidem._testing.kafka_install import install_kafka
from aioidem.testing import KafkaCluster
from tests.kafka.tools import STOCK, bounded

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
@bounded(60)
async def test_a_broker_maps_the_archive_that_was_written() -> None:
    """The broker's process has mapped the archive, and a JVM says nothing about it."""
    install = await to_thread.run_sync(install_kafka, STOCK[0])
    archive = await to_thread.run_sync(find_archive, install, JVM_OPTIONS)
    assert archive is not None
    async with KafkaCluster(STOCK[0]) as cluster:
        process = cluster.brokers[0].process
        maps = Path(f"/proc/{process.pid}/maps")
        assert str(archive) in await to_thread.run_sync(maps.read_text)
        log = await to_thread.run_sync(process.log.read_text)
        assert "[warning]" not in log
        printed = await cluster.run_tool("kafka.tools.StorageTool", "random-uuid")
        assert len(printed.split()) == 1
