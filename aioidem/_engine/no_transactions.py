"""NoTransactions and NoCoordination: the null objects of a producer without a transactional id.

They permit every write, ignore every failure, and send nothing to a coordinator. So no other part
of the engine has to ask whether there are transactions.
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
    """Return a producer's transactions, or the null object if it has no transactional id.

    Args:
        config: validated options.
        identity: receives the identities that coordinators grant.
        backoff: the delays between attempts at a call to the coordinator.
    """
    if config.transactional_id is None:
        return NoTransactions(identity, backoff)
    transactions = Transactions(config.transactional_id, identity, backoff)
    transactions.init()
    return transactions


class NoTransactions(Transactions):
    """The null object in place of `Transactions`: batches may be sent at any time."""

    __slots__ = ()

    def __init__(self, identity: IdentityLedger, backoff: Backoff) -> None:
        super().__init__("", identity, backoff)
        self.state = TransactionState.READY

    @property
    def may_send(self) -> bool:
        """Always True: batches may be sent at any time."""
        return True

    @property
    def awaits(self) -> float | None:
        """Always None: no call to a coordinator waits for a back-off to end."""
        return None

    @property
    def gated(self) -> bool:
        """Always True: first-ack gates (one batch in flight until the first ack) apply.

        A leader without the producer's state accepts any sequence, so a second batch could be
        appended although the first was refused.
        """
        return True

    def need_open(self) -> None:
        """Permit every record, without a check."""

    def admits(self, topic: str, partition: int) -> bool:
        """Return True: every partition may be written to."""
        del topic, partition
        return True

    def produce_version(self, offered: int) -> int:
        """Return the highest Produce version that the connection supports."""
        return offered

    @property
    def grants_epochs(self) -> bool:
        """Always False: the producer raises its epoch itself, without a coordinator (KIP-360)."""
        return False

    def on_numbers_given_up(self, where: str, reason: str) -> None:
        """Do nothing: there is no transaction that could fail."""

    def on_topic_recreated(self, topic: str, *, numbered: bool) -> None:
        """Do nothing: there is no transaction that could fail."""

    def fail(self, error: errors.KafkaError | None) -> None:
        """Do nothing: there is no transaction that could fail."""

    def die(self, error: errors.KafkaError) -> None:
        """Do nothing: when the producer ends, there is no transaction to end with it."""

    def on_produced(self, error_code: int | None) -> None:
        """Do nothing: no write begins a transaction."""

    def next_call(self, now: float, *, delivered: bool, quiet: bool) -> Call | None:
        """Return None: no coordinator is called."""
        del now, delivered, quiet
        return None


class NoCoordination(Coordination):
    """The null object in place of `Coordination`: there is no coordinator to call."""

    def follow(self) -> None:
        """Do nothing: there is no transaction whose state could affect records."""

    def call(self, now: float) -> None:
        """Do nothing: there is no coordinator to call."""
