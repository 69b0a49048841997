"""Which broker addresses are kept."""

from __future__ import annotations

from aioidem._config import ProducerConfig
from aioidem._engine.connections import Connections
from aioidem._protocol.metadata import BrokerAddress


def test_of_many_addresses_only_those_that_metadata_names_are_kept() -> None:
    """A cluster whose brokers get new ids for years does not fill the memory."""
    connections = Connections(ProducerConfig.build("b1:9092"), lambda: 0.0)
    for first in range(0, 5_000, 10):
        connections.learn([BrokerAddress(n, f"b{n}", 9092) for n in range(first, first + 10)])
    known = [node_id for node_id in connections.nodes if node_id >= 0]
    assert len(known) < 1_100
    assert set(range(4_990, 5_000)) <= set(known)
    assert len(connections.nodes) > len(known), "the bootstrap server is kept"
