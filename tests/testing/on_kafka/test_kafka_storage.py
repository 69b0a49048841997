"""What `format_storage` copies is what Kafka's StorageTool writes."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from anyio import to_thread

from aioidem._testing.kafka_admin import KafkaAdmin
from aioidem._testing.kafka_broker import HOST, KafkaBroker
from aioidem._testing.kafka_install import install_kafka
from aioidem._testing.kafka_process import ProcessGuard
from aioidem._testing.kafka_setup import KafkaSetup, new_cluster_id
from aioidem._testing.kafka_storage import format_storage
from aioidem._testing.kafka_tools import KafkaJava, KafkaTools
from aioidem.testing import FaultProxy
from tests.kafka.tools import STOCK, bounded

pytestmark = pytest.mark.anyio


class CountingTools(KafkaTools):
    """Runs Kafka's tools, and counts how often."""

    runs = 0

    async def run_tool(self, main_class: str, *arguments: str, timeout: float = 60.0) -> bytes:
        self.runs += 1
        return await super().run_tool(main_class, *arguments, timeout=timeout)


def entries(broker: KafkaBroker) -> dict[str, str]:
    lines = (broker.folder / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if not line.startswith("#"))


@pytest.mark.parametrize("version", STOCK)
@bounded(60)
async def test_the_tool_runs_once_and_would_write_what_is_copied(
    version: str, tmp_path: Path
) -> None:
    """One run formats three brokers; a copy differs from the tool's files by its names only."""
    setup = KafkaSetup(
        brokers=3, cluster_id=new_cluster_id(), retain={}, security=None,
        properties={"log.segment.bytes": 1234567}, features={},
    )  # fmt: skip
    guard = await to_thread.run_sync(ProcessGuard)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(to_thread.run_sync, guard.close)
        install = await to_thread.run_sync(install_kafka, version)
        java = KafkaJava(install, (), tmp_path, guard)
        ports = await to_thread.run_sync(setup.reserve_ports)
        brokers = []
        for node, own in enumerate(ports):
            proxy = await stack.enter_async_context(FaultProxy(HOST, own.client))
            make = partial(setup.make_broker, java, tmp_path, node, ports, proxy)
            brokers.append(await to_thread.run_sync(make))
        tools = CountingTools(version, java, brokers, KafkaAdmin(brokers, 3, 30.0))
        await format_storage(tools, setup, brokers, tmp_path, 60.0)
        assert tools.runs == 1
        copied = entries(brokers[2])
        for file in brokers[2].folder.iterdir():
            file.unlink()
        await tools.run_tool("kafka.tools.StorageTool", *setup.format_arguments(tmp_path, 2))
    written = entries(brokers[2])
    assert copied | {"directory.id": ""} == written | {"directory.id": ""}
    assert len({copied["directory.id"], *(entries(each)["directory.id"] for each in brokers)}) == 4
    [first, *others] = [(each.folder / "bootstrap.checkpoint").read_bytes() for each in brokers]
    # A record batch has the time at which it was made, and so another checksum.
    assert {len(each) for each in others} == {len(first)}
    assert others[0] == first
