"""The wire monitor: checks the Produce requests of one producer against the rules of the protocol.

The code that carries the bytes (a simulation, a proxy, a wrapper of a stream) reports each Produce
request written, each answer delivered and each connection lost. The monitor keeps its own account
of sequences and identities (producer id and epoch) per partition in `wire_account`, and collects
`violations`. It is written from the protocol's side and shares no code with the engine that it
watches.

A batch is in doubt if an attempt that ended may have been appended, and no answer has proved that
the batch is stored. A batch is outstanding while an attempt is neither answered nor lost.

The rules:
- The sequences of batches that are sent for the first time are contiguous per (producer id, epoch),
  and begin at 0 in every new epoch.
- A sequence that is sent again has the same bytes. One exception: a batch whose attempts were all
  refused, the last one as too large, may be sent again as smaller batches with the same sequences.
- A batch that is sent for the first time is within the window. The window is how many batches the
  leader retains, as its last successful answer says; before the first answer on a connection or of
  a new leader the window is 5. It limits the number of batches from the oldest one that is not
  proved stored to the new one, both counted.
- A batch under a new identity is written only when no batch of the partition is outstanding or in
  doubt under an older identity. Batches in doubt that the producer has given up (`outcome`) do not
  count.
- The gate: a partition has at most one batch outstanding until the leader has answered NONE,
  because a leader without the producer's state accepts any first sequence. The rule applies anew to
  each leader, connection and identity, and after each error. Two kinds of errors nevertheless allow
  resending several batches at once. One shows that the leader has the producer's state
  (OUT_OF_ORDER_SEQUENCE_NUMBER or DUPLICATE_SEQUENCE_NUMBER). The other refuses a batch in doubt
  with a code that brokers send only if they have not appended the batch.
- The batches of a partition are outstanding on one connection at a time, and a connection has no
  more requests in flight than allowed.
- If data-loss events are reported (`loss_reported`), an event is raised whenever answers prove that
  the broker lost acknowledged records: see `loss_watch`.

Rejected
    Watching inside the broker: it reads a batch half a round trip after the client has sent it, so
    a batch could seem to exceed a window that shrank in between.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._testing.history import Anomaly, Outcome, ValueId, Violation
from aioidem._testing.loss_watch import LossWatch
from aioidem._testing.wire_account import (
    DEFAULT_WINDOW,
    Carried,
    Identity,
    PartitionAccount,
    Sent,
    WireAnswer,
    WireBatch,
)

__all__ = ["WireMonitor"]

_MAX_WINDOW: Final = 1000
_TOO_LARGE: Final = frozenset({ErrorCode.message_too_large, ErrorCode.record_list_too_large})
_SHOWS_STATE: Final = frozenset(
    {ErrorCode.out_of_order_sequence_number, ErrorCode.duplicate_sequence_number}
)
# Brokers send these codes instead of appending a batch, and also after they have appended one. Only
# in the second case does the answer have a base offset.
_TWO_FACED: Final = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
    }
)
# Codes that show, in an answer without a base offset, that the broker did not append the batch.
_BEFORE_APPEND: Final = _TWO_FACED | frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.leader_not_available,
        ErrorCode.message_too_large,
        ErrorCode.invalid_topic_exception,
        ErrorCode.record_list_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.invalid_required_acks,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.invalid_timestamp,
        ErrorCode.unsupported_version,
        ErrorCode.invalid_request,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.policy_violation,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_txn_state,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_authorization_failed,
        ErrorCode.unknown_producer_id,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.unsupported_compression_type,
        ErrorCode.invalid_record,
        ErrorCode.throttling_quota_exceeded,
        ErrorCode.producer_fenced,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.rebootstrap_required,
        # The leader sends these codes for the transaction's coordinator, which it asks before it
        # appends (KIP-890).
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.concurrent_transactions,
        ErrorCode.transaction_abortable,
    }
)
_BATCH_HEADER: Final = struct.Struct(">qiibIhiqqqhii")


class WireMonitor:
    """Checks the Produce requests of one producer.

    An identity is a producer id with its epoch. A batch is in doubt while it may or may not be in
    the log. The window is how many batches the leader retains per producer: new batches may be sent
    only so far ahead of the oldest batch that is not proved stored.

    Args:
        max_in_flight: The producer's ``max.in.flight.requests.per.connection``; None: not checked.
        outcome: Returns the outcome that the producer has reported for a record's value. A batch in
            doubt does not block a new identity or the window if the producer has given the batch
            up, or has found the batch by reading the log.
        first_sequences: The first sequence of each (topic, partition) that does not begin at 0.
        windowed: Whether a window limits the batches; under KIP-758 none does.
        max_records: The most records from the oldest one that is not proved stored to the newest
            one, both included: the range in which brokers of KIP-758 know a duplicate. None: not
            checked.
        renumbers: Whether batches in doubt may get a new identity (``in_doubt="resend"``).
        trust_base_offset: The producer's option of that name. If it is False, an error code that
            brokers send before as well as after the append leaves the batch in doubt, even if the
            answer has no base offset.

    Attributes:
        violations: The violations of the rules so far, in words.
        before_append: The error codes that show, in an answer without a base offset, that the
            broker did not append the batch.
        max_span: The largest span so far: the number of batches from the oldest one that is not
            proved stored to a new one, both included.
    """

    def __init__(
        self,
        *,
        max_in_flight: int | None = None,
        outcome: Callable[[ValueId], Outcome] | None = None,
        first_sequences: Mapping[tuple[str, int], int] | None = None,
        windowed: bool = True,
        max_records: int | None = None,
        renumbers: bool = False,
        trust_base_offset: bool = True,
    ) -> None:
        self.violations: list[Violation] = []
        self.max_span = 0
        self._max_in_flight = max_in_flight
        self._outcome = outcome
        self._first_sequences = first_sequences or {}
        self._windowed = windowed
        self._max_records = max_records
        self._renumbers = renumbers
        self.before_append: frozenset[int] = (
            _BEFORE_APPEND if trust_base_offset else _BEFORE_APPEND - _TWO_FACED
        )
        self._partitions: dict[tuple[str, int], PartitionAccount] = {}
        self._losses = LossWatch(self._outcomes)
        self._requests: dict[object, dict[object, dict[tuple[str, int], Carried]]] = {}

    # -- what is reported -------------------------------------------------------------------------

    def wrote(self, connection: object, request: object, batches: Sequence[WireBatch]) -> None:
        """Report that a Produce request was given to the socket.

        Args:
            connection: Identifies the connection.
            request: Identifies the request on its connection.
            batches: The request's batches.
        """
        carried = {(b.topic, b.partition): self._write(connection, b) for b in batches}
        requests = self._requests.setdefault(connection, {})
        requests[request] = carried
        if self._max_in_flight is not None and len(requests) > self._max_in_flight:
            self._report(Anomaly.IN_FLIGHT, f"{len(requests)} of {self._max_in_flight}")

    def answered(self, connection: object, request: object, answers: Sequence[WireAnswer]) -> None:
        """Report that an answer reached the producer; batches that it leaves out are in doubt."""
        left = self._requests.get(connection, {}).pop(request, {})
        for answer in answers:
            carried = left.pop((answer.topic, answer.partition), None)
            if carried is not None:
                self._answer(carried, answer)
        for carried in left.values():
            carried.doubt()

    def lost(self, connection: object, unwritten: Collection[object] = ()) -> None:
        """Report that a connection has ended, and that the producer has noticed it or closed it.

        Args:
            connection: Identifies the connection.
            unwritten: The requests of which, as the producer knows, no byte was written.
        """
        for request, carried in self._requests.pop(connection, {}).items():
            for each in carried.values():
                if request in unwritten:
                    each.withdraw()
                else:
                    each.doubt()

    def leader_changed(self, topic: str, partition: int) -> None:
        """Report that the producer has noticed another leader epoch: window and gate are reset."""
        state = self._partition(topic, partition)
        state.era += 1
        state.start_over()

    def topic_recreated(self, topic: str) -> None:
        """Report that the producer has noticed a recreated topic: its accounts start anew."""
        for key in [key for key in self._partitions if key[0] == topic]:
            self._partitions[key] = PartitionAccount()

    def cluster_changed(self) -> None:
        """Report that the producer has moved to another cluster: all accounts start anew."""
        self._partitions.clear()
        self._losses.cluster_changed()

    def loss_reported(self, topic: str, partition: int) -> None:
        """Report that the producer has raised a data-loss event for a partition."""
        self._losses.reported(self._partition(topic, partition))

    def refused(self, topic: str, partition: int, value: ValueId) -> None:
        """Report that a record is about to end UNKNOWN because of OUT_OF_ORDER_SEQUENCE_NUMBER."""
        self._losses.gave_up(self._partition(topic, partition), f"{topic}-{partition}", value)

    def unreported_losses(self) -> list[Violation]:
        """Return a violation for each proved loss after which no data-loss event was raised."""
        return self._losses.unreported(self._partitions.values())

    @property
    def losses_proved(self) -> int:
        """Return the number of losses that the broker's answers have proved."""
        return self._losses.proved

    # -- what the producer sends -------------------------------------------------------------------

    def _partition(self, topic: str, index: int) -> PartitionAccount:
        state = self._partitions.get((topic, index))
        if state is None:
            state = self._partitions[topic, index] = PartitionAccount()
        return state

    def _write(self, connection: object, batch: WireBatch) -> Carried:
        state = self._partition(batch.topic, batch.partition)
        if state.outstanding and state.connection != connection:
            self._report(Anomaly.TWO_ROUTES, batch.where)
        if state.connection != connection:
            state.start_over()
        state.connection = connection
        state.outstanding += 1
        header = _BATCH_HEADER.unpack_from(batch.data)
        producer_id, epoch, sequence, count = header[9:13]
        if producer_id < 0:
            return Carried(state, None, None, state.era)
        identity = self._identity(state, batch, (producer_id, epoch))
        known = identity.unwrap(sequence) in identity.batches
        if (
            state.outstanding > 1
            and not state.gate
            and not (known and state.asking)
            and state.unproved_in_flight
        ):
            self._report(Anomaly.GATE, f"{batch.where}: sequence {sequence} in company")
        sent = self._place(state, identity, batch, identity.unwrap(sequence), count)
        sent.attempts += 1
        sent.outstanding += 1
        return Carried(state, identity, sent, state.era)

    def _identity(
        self, state: PartitionAccount, batch: WireBatch, key: tuple[int, int]
    ) -> Identity:
        identity = state.identities.get(key)
        if key == state.newest and identity is not None:
            return identity
        if identity is not None:
            self._overlap(batch, f"{key} again after {state.newest}")
            return identity
        for older, account in state.identities.items():
            for sent in account.batches.values():
                if sent.outstanding:
                    self._overlap(batch, f"{key} while {older} #{sent.base} is outstanding")
                elif sent.ambiguous and not sent.proved and not self._given_up(sent):
                    self._overlap(batch, f"{key} while {older} #{sent.base} is in doubt")
        state.gate = state.asking = False
        self._losses.new_identity(state, batch.where)
        if state.newest is not None and state.newest[0] == key[0] and key[1] <= state.newest[1]:
            self._overlap(batch, f"{key} after {state.newest}")
        first = 0
        if not state.identities:
            first = self._first_sequences.get((batch.topic, batch.partition), 0)
        state.newest = key
        identity = state.identities[key] = Identity(key[0], first)
        return identity

    def _place(
        self, state: PartitionAccount, identity: Identity, batch: WireBatch, base: int, count: int
    ) -> Sent:
        known = identity.batches.get(base)
        if known is not None:
            if known.data == batch.data:
                return known
            if not (known.split and not known.outstanding and count < known.count):
                self._report(
                    Anomaly.CHANGED_RETRY, f"{batch.where}: sequence {base}, {count} records"
                )
                return known
            identity.open_gap(known)
        sent = identity.add(base, count, batch.data)
        self._continue(identity, batch, base, base + count)
        if identity.span_to(base) > state.window:
            self._take_in_what_was_read(identity, base)
        span = identity.span_to(base)
        self.max_span = max(self.max_span, span)
        if self._windowed and span > state.window:
            self._report(Anomaly.SPAN, f"{batch.where}: {span} of {state.window}, sequence {base}")
        records = base + count - identity.oldest(base)
        if self._max_records is not None and records > self._max_records:
            self._report(Anomaly.SPAN, f"{batch.where}: {records} of {self._max_records} records")
        return sent

    def _continue(self, identity: Identity, batch: WireBatch, base: int, end: int) -> None:
        if identity.fill_gap(base, end):
            return
        if base != identity.frontier:
            self._report(
                Anomaly.GAP, f"{batch.where}: sequence {base} where {identity.frontier} is next"
            )
        identity.frontier = max(end, identity.frontier)

    # -- what the producer has said ---------------------------------------------------------------

    def _outcomes(self, sent: Sent) -> set[Outcome] | None:
        if self._outcome is None:
            return None
        return {self._outcome(value) for value in sent.values()}

    def _given_up(self, sent: Sent) -> bool:
        outcomes = self._outcomes(sent)
        return self._renumbers or outcomes is None or Outcome.PENDING not in outcomes

    def _take_in_what_was_read(self, identity: Identity, base: int) -> None:
        """Count batches in doubt as proved if the producer has found them by reading the log."""
        for before in identity.order:
            sent = identity.batches[before]
            if before < base and sent.ambiguous and not sent.outstanding:
                sent.proved |= self._outcomes(sent) == {Outcome.ACKED}

    # -- answers ----------------------------------------------------------------------------------

    def _answer(self, carried: Carried, answer: WireAnswer) -> None:
        state, identity, sent = carried.partition, carried.identity, carried.sent
        state.outstanding -= 1
        if sent is None or identity is None:
            return
        sent.outstanding -= 1
        sent.split = False
        if answer.code == ErrorCode.none:
            self._losses.succeeded(state, identity, sent, answer)
            identity.prove(sent.base)
            if carried.era == state.era:
                state.gate, state.asking = True, False
                said = DEFAULT_WINDOW if answer.retained is None else answer.retained
                state.window = max(1, min(said, _MAX_WINDOW))
            return
        refused = answer.code in self.before_append and answer.base_offset < 0
        # Two kinds of errors allow resending several batches at once: one that only a leader with
        # the producer's state sends, and one that refuses a batch in doubt and is sent only if the
        # batch was not appended. No other error allows it.
        state.asking |= answer.code in _SHOWS_STATE
        if not sent.proved:
            state.gate = False
            state.asking |= sent.ambiguous and refused
        identity.disowned |= answer.code == ErrorCode.unknown_producer_id
        if answer.code == ErrorCode.invalid_producer_epoch:
            self._losses.shared(identity.producer_id)
        if answer.code == ErrorCode.out_of_order_sequence_number:
            self._losses.out_of_order(state, identity, sent)
        if not refused:
            sent.ambiguous = True
        elif answer.code in _TOO_LARGE and not sent.ambiguous:
            sent.split = True

    def _overlap(self, batch: WireBatch, detail: str) -> None:
        self._report(Anomaly.EPOCH_OVERLAP, f"{batch.where}: {detail}")

    def _report(self, anomaly: Anomaly, detail: str) -> None:
        self.violations.append(Violation(anomaly, detail))
