"""A patched Kafka broker that remembers twenty batches, and a proxy that says so, or more."""

from __future__ import annotations

import pytest

from aioidem._doctor.finding import FindingName as Name
from aioidem.testing import KafkaCluster
from tests.doctor.setups import bad, findings
from tests.kafka.tools import bounded

pytestmark = pytest.mark.anyio


@bounded(200)
async def test_what_a_broker_says_is_compared_with_what_it_remembers() -> None:
    """Twenty batches are recognised, and the twenty-first is not, if the proxy says thirty."""
    async with KafkaCluster(retain=20) as cluster:
        for topic in ("honest", "boasts"):
            await cluster.create_topic(topic)
        cluster.retention().set("boasts", 30)
        servers = cluster.bootstrap_servers
        honest = await findings(servers, "honest", write_to="honest")
        boasts = await findings(servers, "boasts", write_to="boasts")
    assert bad(honest) == set()
    assert "20 batches" in honest[Name.WINDOW].seen
    assert "up to 20 back" in honest[Name.RETAINED].seen
    assert bad(boasts) == {Name.FEWER_RETAINED}
    assert "up to 20 back and refused the one 21 back" in boasts[Name.FEWER_RETAINED].seen
