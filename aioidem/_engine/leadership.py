"""Leadership: what a partition knows of its present leader, over the present connection to it.

Whatever a leader has shown holds for one route only, the connection with the leader epoch: a new
leader may be an older broker or have lost its state, and so may the same broker after a reconnect.
So the window, the first-ack gate and the evidence of what the leader retains begin anew with each
route.
"""

from __future__ import annotations

from aioidem._engine.batch import Attempt, Batch
from aioidem._engine.effects import Effects
from aioidem._engine.first_ack_gate import FirstAckGate
from aioidem._engine.idempotence import SequenceLedger
from aioidem._engine.log_position import LogPosition
from aioidem._engine.retention import RetentionEvidence
from aioidem._engine.route import Route
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.windows import PartitionWindow
from aioidem.structs import TopicPartition

__all__ = ["Leadership"]


class Leadership:
    """The route to one partition's leader, and what the leader has shown on it.

    The route is the connection to the partition's leader, with the leader epoch.

    Args:
        topic_partition: the partition.
        ledger: the identity that the partition writes under.
        window: how many batches the leader recognises.
        gate: whether the leader has shown that it holds the producer's state.
        evidence: how many batches the leader was seen to recognise.
        suspicion: whether the leader may have forgotten the producer.
        log: how far the partition's log is known to reach.
    """

    __slots__ = (
        "_ledger",
        "_log",
        "_suspicion",
        "_topic_partition",
        "evidence",
        "gate",
        "route",
        "window",
    )

    def __init__(
        self,
        topic_partition: TopicPartition,
        ledger: SequenceLedger,
        window: PartitionWindow,
        gate: FirstAckGate,
        evidence: RetentionEvidence,
        suspicion: Suspicion,
        log: LogPosition,
    ) -> None:
        self._topic_partition = topic_partition
        self._ledger = ledger
        self.window = window
        self.gate = gate
        self.evidence = evidence
        self._suspicion = suspicion
        self._log = log
        self.route: Route | None = None

    @property
    def gate_open(self) -> bool:
        """Whether several batches may be in flight, instead of only the oldest unresolved one."""
        return self.gate.is_open((self._ledger.identity, self.route))

    def take(self, route: Route) -> None:
        """Begin anew on another route, about which nothing is known yet."""
        self.route = route
        self.window.reset()
        self.evidence.clear()
        self.gate.restart()

    def renew(self) -> None:
        """Forget what the leader has shown under an identity that is used no longer."""
        self.gate.restart()
        self.evidence.clear()
        self._suspicion.renewed()

    def knows(self, batch: Batch) -> bool:
        """Return whether the leader would recognise another copy of the batch.

        It would if the last success (error NONE) came under the batch's identity and the present
        route: then the leader holds the producer's state.
        """
        return batch.identity is not None and self.gate.has_heard((batch.identity, self.route))

    def hear_none(self, batch: Batch, attempt: Attempt | None, now: float) -> None:
        """Open the gate if error NONE came for a batch under the present identity and route."""
        route = self.route
        if attempt is None or route is None or attempt.link_id != route.link_id:
            return
        if batch.identity == self._ledger.identity:
            self.gate.hear_none((batch.identity, route), now)

    def learn_window(self, retained: int | None, where: str, out: Effects) -> None:
        """Take the window from a successful answer; a change is reported."""
        before = self.window.said
        if self.window.learn(retained):
            out.window_changed(where, self.route, before, self.window.said)

    # -- whether it retains as many batches as it says

    def recognised(self, batch: Batch, now: float, out: Effects) -> None:
        """Note error NONE for a batch, which may be a retry that the leader has recognised."""
        if self.evidence.none:
            return
        self.evidence.recognised(batch, self._log.ordinal - batch.ordinal + 1)
        self._judge_memory(now, out)

    def refused(self, batch: Batch, now: float, out: Effects, *, out_of_order: bool) -> None:
        """Note an error code for a batch, which may be a retry that the leader has forgotten."""
        if out_of_order:
            self.evidence.refused(batch)
        else:
            self.evidence.ended(batch)
        self._judge_memory(now, out)

    def _judge_memory(self, now: float, out: Effects) -> None:
        """Report the leader if it was seen to retain fewer batches than it says it does."""
        window = self.window
        disproof = self.evidence.verdict(window.said) if window.heard else None
        if disproof is not None and not self._suspicion.suspect and window.sequence_cap is None:
            out.disprove(*self._topic_partition, self.route, disproof, now)
