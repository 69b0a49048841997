"""Effects: what a partition's answers change beyond the partition.

Partitions report here and never call upwards: everything that an answer touches outside of its
partition (the outcome, the need for metadata, the epoch, the open transaction, the producer's end)
is one method of this class.
"""

from __future__ import annotations

from aioidem import errors
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.transactions import Transactions

__all__ = ["Effects"]


class Effects:
    """What the partitions of one producer report.

    Args:
        outcomes: take the outcomes of records, and events.
        metadata: is asked for when a view turns out to be stale.
        identity: whose epoch is raised where numbers were given up.
        transactions: fail with what is reported.
        accusations: keep verdicts on brokers' memories.
    """

    __slots__ = (
        "_accusations",
        "_identity",
        "_metadata",
        "_outcomes",
        "_transactions",
        "fatal_error",
        "settle",
    )

    def __init__(
        self,
        outcomes: Outcomes,
        metadata: MetadataRefresher,
        identity: IdentityLedger,
        transactions: Transactions,
        accusations: Accusations,
    ) -> None:
        # Reports the outcome of records.
        self.settle = outcomes.settle
        self._outcomes = outcomes
        self._metadata = metadata
        self._identity = identity
        self._transactions = transactions
        self._accusations = accusations
        # Why no later send can succeed; None while one may.
        self.fatal_error: errors.KafkaError | None = None

    def refresh_metadata(self) -> None:
        """Ask for metadata at the next chance: the view of the cluster is stale."""
        self._metadata.want()

    def bump(self, where: str, identity: ProducerIdentity | None) -> None:
        """Ask for another epoch: numbers of a partition were given up under this identity.

        One incident, one bump: a partition still on an older epoch only has to adopt the newer one.
        With a transactional id the coordinator brings it, at the end of the transaction, which can
        only be aborted.
        """
        if not self._transactions.numbers_given_up() and identity == self._identity.current:
            self._identity.bump()
            self._outcomes.event(f"{where}: producer epoch bumped")

    def data_loss(self, where: str, reason: str) -> None:
        """Report that a broker lost what it had acknowledged, or our state."""
        self._outcomes.counters.data_loss_events += 1
        # What was lost may be of the open transaction, which must not be committed in part.
        self._transactions.fail(errors.OutOfOrderSequenceNumber(f"data loss: {reason}"))
        self._outcomes.event(f"{where}: data loss: {reason}")

    def fatal(self, error: errors.KafkaError) -> None:
        """End the producer for good; what is unsettled is settled in the next poll."""
        self._transactions.die(error)
        if self.fatal_error is None:
            self.fatal_error = self._transactions.cause or error

    def fail_transaction(self, where: str, error: errors.KafkaError) -> None:
        """Let the open transaction be aborted: it can not be committed any more."""
        self._transactions.fail(error)
        self._outcomes.event(f"{where}: the transaction must be aborted: {error}")

    def disprove(
        self, topic: str, partition: int, route: Route | None, disproof: Disproof, now: float
    ) -> None:
        """Accuse a leader of remembering fewer batches than it says.

        Unless it was deposed in between: that is what metadata from now on will tell.
        """
        if route is not None:
            self._accusations.add(Accusation(topic, partition, route, disproof, now))
            self._metadata.want()
