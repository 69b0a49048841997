"""Replicas of real Kafka that are missing, as `aioidem doctor` sees them."""

from __future__ import annotations

import anyio
import pytest

from aioidem._doctor.finding import FindingName as Name
from aioidem.testing import KafkaCluster
from tests.doctor.setups import Findings, bad, findings
from tests.kafka.tools import bounded

pytestmark = pytest.mark.anyio


@bounded(200)
async def test_a_broker_is_lost() -> None:
    """What its loss costs depends on min.insync.replicas of each topic."""
    async with KafkaCluster(brokers=3) as cluster:
        topics = {"all": 3, "spare": 2, "one": 1}
        for name, least in topics.items():
            configs = {"min.insync.replicas": least}
            await cluster.create_topic(name, replication=3, configs=configs)
        await cluster.create_topic("single", partitions=6, replication=1)
        whole = await findings(cluster.bootstrap_servers, *topics, "single")
        assert bad(whole) == {Name.NO_SPARE_REPLICA}
        assert "all: " in whole[Name.NO_SPARE_REPLICA].seen
        await cluster.kill(2)
        # The controller notices after some seconds that the broker is gone.
        found: Findings = {}
        while {Name.TOO_FEW_IN_SYNC, Name.NO_LEADER} - bad(found):
            await anyio.sleep(0.2)
            found = await findings(cluster.bootstrap_servers, *topics, "single", timeout=10.0)
    assert "all: partition 0" in found[Name.TOO_FEW_IN_SYNC].seen
    assert "spare: partition 0" in found[Name.NO_SPARE_REPLICA].seen
    assert "on these brokers: 2" in found[Name.REPLICA_OFFLINE].seen
    # The address of the lost broker is one of the bootstrap servers; its proxy hangs up.
    assert bad(found) - {Name.HUNG_UP, Name.REFUSED, Name.NO_ANSWER} == {
        Name.TOO_FEW_IN_SYNC,
        Name.NO_LEADER,
        Name.NO_SPARE_REPLICA,
        Name.REPLICA_OFFLINE,
    }
