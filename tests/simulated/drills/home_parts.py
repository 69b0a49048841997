"""The parts of a producer that decide which cluster it writes to, without the rest of an engine."""

from __future__ import annotations

from random import Random

from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.identity_request import IdentityRequest

from .engine_parts import EngineParts

__all__ = ["HomeParts"]


class HomeParts(EngineParts):
    """The acting parts of an engine, with the `HomeCluster` that uses them."""

    def __init__(self, config: ProducerConfig, dice: Random) -> None:
        super().__init__(config, dice.random)
        core = self.core
        self.identity_request = IdentityRequest(
            config, core.identity, core.metadata, self.requests, Backoff(0.1, 1.0, dice.random)
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
            self.doubt,
            self.accusations,
            core.outcomes,
            self.effects,
        )
