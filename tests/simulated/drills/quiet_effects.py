"""What a partition, driven by itself, tells the engine: outcomes are kept, the rest is ignored."""

from __future__ import annotations

from aioidem._engine.effects import Effects
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.settlement import Settlement
from aioidem.errors import KafkaError

__all__ = ["QuietEffects"]


class QuietEffects(Effects):
    """Keeps the outcomes of records; what else a partition tells the engine is ignored."""

    def __init__(self) -> None:
        self.settlements: list[Settlement] = []
        self.settle = self._keep
        self.fatal_error = None
        self.lacking: set[tuple[str, int]] = set()
        """The partitions that are not in the open transaction yet."""
        self.refused: KafkaError | None = None
        """The coordinator's last refusal."""

    def _keep(self, settlement: Settlement) -> None:
        self.settlements.append(settlement)

    def bump(self, where: str, identity: ProducerIdentity | None, reason: str) -> None:
        """Ignore that another epoch is wanted."""

    def doubt_ended(self, how: str) -> None:
        """Ignore how doubt has ended."""

    def not_added(self, topic: str, partition: int) -> str | None:
        """Return why a partition is not in the open transaction, in words; None if it is."""
        return f"{topic}-{partition} waits" if (topic, partition) in self.lacking else None

    @property
    def refusal(self) -> KafkaError | None:
        """The coordinator's last refusal."""
        return self.refused
