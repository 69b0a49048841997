"""Effects: what the answers to one partition's batches change beyond the partition.

The parts of a partition call the methods of this class, and never the parts of the engine that use
`PartitionState`. There is one method for each thing that an answer may change outside of its
partition: the outcome of records, the need for metadata, the epoch, the open transaction, the end
of the producer.
"""

from __future__ import annotations

import logging

from aioidem import errors
from aioidem._engine.accusations import Accusation, Accusations
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.transactions import Transactions
from aioidem._log import LogLine

__all__ = ["Effects"]


class Effects:
    """The one object to which all partitions of a producer report.

    Args:
        outcomes: receives the outcomes of records, and events for the operator.
        metadata: is requested when the view of the cluster turns out to be stale.
        identity: its epoch is raised when sequence numbers were given up.
        transactions: holds the open transaction, which fails with the reported error.
        accusations: keeps unconfirmed verdicts that a broker remembers fewer batches per producer
        than it says (KIP-1269). A broker recognises retries by these batches.
    """

    __slots__ = (
        "_accusations",
        "_identity",
        "_metadata",
        "_outcomes",
        "_transactions",
        "fatal_error",
        "meters",
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
        # `Outcomes.settle`: called to report the outcome of records.
        self.settle = outcomes.settle
        self.meters = outcomes.meters
        self._outcomes = outcomes
        self._metadata = metadata
        self._identity = identity
        self._transactions = transactions
        self._accusations = accusations
        # The error that ended the producer for good; None while sends may succeed.
        self.fatal_error: errors.KafkaError | None = None

    def refresh_metadata(self) -> None:
        """Have metadata requested at the next opportunity: the view of the cluster is stale."""
        self._metadata.want()

    def bump(self, where: str, identity: ProducerIdentity | None, reason: str) -> None:
        """Have the epoch raised: a partition gave up sequence numbers, and a leader allows no gap.

        One incident bumps the epoch once: a partition that is still on an older epoch only adopts
        the newer one. With a transactional id the transaction can only be aborted, and the
        coordinator grants the next epoch after the abort.

        Args:
            where: the partition, for messages.
            identity: the identity under which the numbers were given up.
            reason: why they were given up, for messages.
        """
        self._transactions.on_numbers_given_up(where, reason)
        if not self._transactions.grants_epochs and identity == self._identity.current:
            self._identity.bump()
            self._outcomes.event(
                LogLine.EPOCH_BUMPED, f"{where}: producer epoch bumped, because {reason}"
            )

    def data_loss(self, where: str, reason: str) -> None:
        """Report that a broker lost acknowledged records, or the state of this producer."""
        self._outcomes.counters.data_loss_events += 1
        # The lost records may belong to the open transaction, which must not be committed in part.
        self._transactions.fail(errors.OutOfOrderSequenceNumber(f"{where}: data loss: {reason}"))
        self._outcomes.event(LogLine.DATA_LOSS, f"{where}: data loss: {reason}")

    def doubt_ended(self, how: str) -> None:
        """Count a batch that is not in doubt any more.

        Args:
            how: what showed that it is stored, or "unknown" (see `Meters.doubts`).
        """
        self.meters.doubts[how] += 1

    def waited_at_gate(self, since: float, now: float) -> None:
        """Note how long only one batch of a partition could be in flight, until its success."""
        self.meters.gate.record(now - since, now)

    def fatal(self, error: errors.KafkaError) -> None:
        """End the producer for good.

        The next poll settles every record that has no outcome yet, as NOT_WRITTEN or UNKNOWN.
        """
        self._transactions.die(error)
        if self.fatal_error is None:
            self.fatal_error = self._transactions.cause or error

    def fail_transaction(self, where: str, error: errors.KafkaError) -> None:
        """Make the open transaction abortable: it cannot be committed any more."""
        self._transactions.fail(error)
        self._outcomes.event(
            LogLine.TRANSACTION_FAILED, f"{where}: the transaction must be aborted: {error}"
        )

    def not_added(self, topic: str, partition: int) -> str | None:
        """Return why a partition is not in the open transaction yet, in words; None if it is."""
        return self._transactions.not_added(topic, partition)

    @property
    def refusal(self) -> errors.KafkaError | None:
        """The last refusal of a coordinator, since it last accepted a request."""
        return self._transactions.last_refusal

    def window_changed(self, where: str, route: Route | None, before: int, after: int) -> None:
        """Report that a leader names another window than before (KIP-1269).

        Args:
            where: the partition, for messages.
            route: the way to its leader.
            before: the window until now, in batches.
            after: the window from now on.
        """
        leader = "the leader" if route is None else f"broker {route.leader_id}"
        batches = "1 batch" if after == 1 else f"{after} batches"
        self._outcomes.event(
            LogLine.WINDOW_CHANGED,
            f"{where}: the window is {batches}, as {leader} says; it was {before}",
            logging.WARNING if after < before else None,
        )

    def disprove(
        self, topic: str, partition: int, route: Route | None, disproof: Disproof, now: float
    ) -> None:
        """Keep the verdict that a leader retains fewer batches than it says, and request metadata.

        The verdict comes from the leader's answers. They are no proof if the leader was deposed
        before it gave them, and the metadata shows whether it was.
        """
        if route is not None:
            self._accusations.add(Accusation(topic, partition, route, disproof, now))
            self._metadata.want()
