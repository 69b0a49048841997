"""The parts of a producer that decide which cluster it writes to, without the rest of an engine."""

from __future__ import annotations

from random import Random

from aioidem._config import ProducerConfig
from aioidem._engine.accusations import Accusations
from aioidem._engine.backoff import Backoff
from aioidem._engine.broker_facts import BrokerInquiries
from aioidem._engine.core import ProducerCore
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.identity_request import IdentityRequest
from aioidem._engine.partitions import Partitions
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.request_ledger import RequestLedger

__all__ = ["HomeParts"]


class HomeParts:
    """A `HomeCluster` with the real parts that it uses."""

    def __init__(self, config: ProducerConfig, dice: Random) -> None:
        core = ProducerCore(config, random=dice.random)
        self.core = core
        self.cluster, self.connections = core.cluster, core.connections
        self.accusations = Accusations()
        self.effects = Effects(
            core.outcomes, core.metadata, core.identity, core.transactions, self.accusations
        )
        requests = RequestLedger(core.connections, core.budget)
        self.partitions = Partitions(
            config, dice.random, core.cluster, core.connections, self.effects
        )
        self.accumulator = RecordAccumulator(
            config,
            dice.random,
            core.cluster,
            core.metadata,
            self.partitions,
            core.outcomes,
            self.effects,
            core.transactions,
        )
        self.inquiries = BrokerInquiries(config, self.partitions, requests, core.outcomes)
        self.identity_request = IdentityRequest(
            config, core.identity, core.metadata, requests, Backoff(0.1, 1.0, dice.random)
        )
        doubt = DoubtResolution(
            config,
            core.cluster,
            core.connections,
            self.inquiries,
            requests,
            core.outcomes,
            self.effects,
        )
        self.home = HomeCluster(
            config,
            core.cluster,
            core.connections,
            self.partitions,
            self.accumulator,
            core.identity,
            self.identity_request,
            self.inquiries,
            doubt,
            self.accusations,
            core.outcomes,
            self.effects,
        )
