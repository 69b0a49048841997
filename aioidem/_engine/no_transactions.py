"""What stands in the place of `Transactions` and `Coordination` without a transactional id.

It forbids nothing, fails with nothing, and asks nothing of a coordinator. So no other part of the
engine asks whether there are transactions.
"""

from __future__ import annotations

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine.backoff import Backoff
from aioidem._engine.coordination import Coordination
from aioidem._engine.idempotence import IdentityLedger
from aioidem._engine.transactions import Call, Transactions, TransactionState

__all__ = ["NoCoordination", "NoTransactions", "transactions_of"]


def transactions_of(
    config: ProducerConfig, identity: IdentityLedger, backoff: Backoff
) -> Transactions:
    """Return a producer's transactions, which ask for an identity; or what stands in their place.

    Args:
        config: validated options.
        identity: gets what coordinators grant.
        backoff: between attempts at a call.
    """
    if config.transactional_id is None:
        return NoTransactions(identity, backoff)
    transactions = Transactions(config.transactional_id, identity, backoff)
    transactions.init()
    return transactions


class NoTransactions(Transactions):
    """The transactions of a producer that has none."""

    __slots__ = ()

    def __init__(self, identity: IdentityLedger, backoff: Backoff) -> None:
        super().__init__("", identity, backoff)
        self.state = TransactionState.READY

    @property
    def may_send(self) -> bool:
        """Let batches be sent at any time."""
        return True

    @property
    def awaits(self) -> float | None:
        """Await nothing of a coordinator."""
        return None

    @property
    def gated(self) -> bool:
        """Have a first-ack gate: a leader without our state takes any sequence."""
        return True

    def need_open(self) -> None:
        """Let every record pass."""

    def admits(self, topic: str, partition: int) -> bool:
        """Let every partition be written to."""
        del topic, partition
        return True

    def produce_version(self, offered: int) -> int:
        """Take the highest Produce version that the connection speaks."""
        return offered

    def numbers_given_up(self) -> bool:
        """Return False: no coordinator supplies an epoch; the producer raises its own (KIP-360)."""
        return False

    def topic_gone(self, topic: str) -> bool:
        """Return False: no coordinator supplies another epoch."""
        del topic
        return False

    def fail(self, error: errors.KafkaError | None) -> None:
        """Do nothing: no transaction fails."""

    def die(self, error: errors.KafkaError) -> None:
        """Do nothing: no transaction ends with the producer."""

    def on_produced(self, error_code: int | None) -> None:
        """Do nothing: no transaction begins with a write."""

    def next_call(self, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        """Ask nothing of a coordinator."""
        del now, delivered, quiet
        return None


class NoCoordination(Coordination):
    """The coordination of a producer that has no coordinator: there is none to call."""

    def follow(self) -> None:
        """Do nothing: no transaction has a fate to share."""

    def call(self, now: float) -> None:
        """Ask nothing of a coordinator."""
