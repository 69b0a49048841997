"""The wire monitor: what a producer may never do, watched where its bytes meet the socket.

Whoever carries the bytes (a simulation, a proxy, a tap in a stream) reports each Produce request
written, each answer delivered and each connection lost; the monitor keeps, per partition, its own
account of sequences, windows and identities and collects `violations`. It is written from the
protocol's side and shares no code with the engine it watches, arithmetic included.

Watched
- Sequences of first sends are contiguous per (producer id, epoch), from 0 in every new epoch.
- A sequence sent again carries the same bytes. One exception: a batch whose every attempt was
  refused, the last time as too large, may be sent again as smaller ones with the same numbers.
- A first send lies within the window: batches from the oldest one not proved stored to itself,
  inclusive, are at most what the leader last said, 5 where it has said nothing on this connection
  since its last change.
- A batch under a new identity is written only when nothing of the partition is outstanding or in
  doubt under an older one; what is in doubt may have been given up, which `outcome` tells.
- Nothing joins a batch that is outstanding until error NONE was heard under this identity, leader
  and connection, and again after any error: a leader without state accepts any first sequence.
  Only what is asked about after OUT_OF_ORDER (the leader has state), or after a refusal of what is
  in doubt by a code that is sent before the append, may go in company.
- A partition is outstanding on one connection at a time, and a connection has no more requests in
  flight than it may.

Where its owner reports the data-loss events too (`loss_reported`) and asks for `unreported_losses`
at the end: that an event follows when answers prove that the broker lost what it acknowledged,
- by an offset: error NONE for a batch newer than every acknowledged one names an offset that was
  acknowledged before;
- by a hole: error NONE for a batch above one of its identity that cannot have been appended;
- by a gap: OUT_OF_ORDER for a batch that cannot have been appended, next to acknowledged ones of an
  identity of which no number was given up; its records then begin another identity;
- by refused probes: OUT_OF_ORDER is why a record ends UNKNOWN (`refused`), next to acknowledged
  ones of an identity of which no number was given up.
A refusal proves nothing where the leader has said that it does not know the producer, nor in any
partition once INVALID_PRODUCER_EPOCH has said that another one writes under its producer id.

Rejected: watching inside the broker. What it has read lags behind what the client has sent by half
a round trip, and a window that shrank meanwhile would look overrun.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from aioidem._records import read_batches
from aioidem._testing.history import Anomaly, Outcome, ValueId, Violation, parse_value

__all__ = ["WireAnswer", "WireBatch", "WireMonitor"]

_WRAP = 1 << 31
_DEFAULT_WINDOW = 5
_MAX_WINDOW = 1000
_TOO_LARGE = frozenset({10, 18})
_TWO_FACED = frozenset({3, 6, 100})
_OUT_OF_ORDER = 45
_INVALID_PRODUCER_EPOCH = 47
_UNKNOWN_PRODUCER_ID = 59
# Codes that every broker path sends before the append, if no base offset comes with them.
_BEFORE_APPEND = frozenset(
    {2, 3, 5, 6, 10, 17, 18, 19, 21, 29, 31, 32, 35, 42, 43, 44, 45, 47, 48, 49, 53, 59}
    | {74, 75, 76, 87, 89, 90, 100, 103, 129}
    # What the leader hears of the transaction's coordinator, whom it asks first (KIP-890).
    | {14, 15, 16, 51, 120}
)
_BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")


class WireBatch(NamedTuple):
    """One partition's batch of a Produce request."""

    topic: str
    partition: int
    data: bytes


class WireAnswer(NamedTuple):
    """One partition's part of an answer; `retained` None where the field is absent."""

    topic: str
    partition: int
    code: int
    base_offset: int
    retained: int | None = None


class _Sent:
    """One batch that was written, as far as the wire tells."""

    __slots__ = ("ambiguous", "attempts", "base", "count", "data", "outstanding", "proved", "split")

    def __init__(self, base: int, count: int, data: bytes) -> None:
        self.base = base
        self.count = count
        self.data = data
        self.attempts = 0
        self.outstanding = 0
        self.proved = False
        self.ambiguous = False
        # The last answer was "too large", and no attempt can have been appended.
        self.split = False


class _Identity:
    """Everything one partition sent under one (producer id, epoch)."""

    __slots__ = ("batches", "disowned", "frontier", "gaps", "order", "producer_id")

    def __init__(self, producer_id: int, first: int) -> None:
        self.producer_id = producer_id
        self.frontier = first
        self.batches: dict[int, _Sent] = {}
        self.order: list[int] = []
        # Ranges whose whole was refused as too large: to be filled again from their start.
        self.gaps: list[tuple[int, int]] = []
        # The leader has said that it does not know us.
        self.disowned = False

    def unwrap(self, sequence: int) -> int:
        ahead = (sequence - self.frontier) % _WRAP
        return self.frontier + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)

    def span_to(self, base: int) -> int:
        oldest = next((b for b in self.order if not self.batches[b].proved), base)
        return sum(1 for b in self.order if oldest <= b <= base)

    def prove(self, base: int) -> None:
        for b in self.order:
            if b <= base:
                self.batches[b].proved = True
        # What is proved at the front bounds no span any more.
        while self.order and self.batches[self.order[0]].proved:
            self.order.pop(0)


class _Partition:
    """One partition of one topic."""

    __slots__ = (
        "acked_end",
        "acked_last",
        "asking",
        "connection",
        "era",
        "gap",
        "gate",
        "identities",
        "losses",
        "newest",
        "outstanding",
        "window",
    )

    def __init__(self) -> None:
        self.identities: dict[tuple[int, int], _Identity] = {}
        self.newest: tuple[int, int] | None = None
        self.connection: object = None
        self.outstanding = 0
        self.window = _DEFAULT_WINDOW
        self.era = 0
        # The newest batch acknowledged with an offset, by (identity, base), and the end of all.
        self.acked_last: tuple[tuple[int, int], int] | None = None
        self.acked_end = 0
        # The batch whose refusal shows a gap, until an event or a proof.
        self.gap: _Sent | None = None
        # What the answers have proved lost, since the last event.
        self.losses: list[str] = []
        # NONE was the last word heard; the leader has shown that it holds state for us.
        self.gate = self.asking = False

    def start_over(self) -> None:
        self.window = _DEFAULT_WINDOW
        self.gate = self.asking = False


class _Carried(NamedTuple):
    """One batch of a request that is outstanding; `sent` None without idempotence."""

    partition: _Partition
    identity: _Identity | None
    sent: _Sent | None
    era: int


class WireMonitor:
    """Watches one producer.

    Args:
        max_in_flight: what `max.in.flight.requests.per.connection` is; None: not watched.
        outcome: what the producer has said of a value (see `history`); it is asked only of batches
            in doubt, when an identity follows theirs and when they would overrun the window: they
            may have been given up, or found in the log by reading it.
        first_sequences: where a partition's very first sequence is not 0, by (topic, partition).
        windowed: whether a window of batches binds at all (it does not under KIP-758).
        renumbers: whether batches in doubt may get a new identity (`in_doubt="resend"`).
        trust_base_offset: as the producer's; False: what may have two faces always has.
    """

    def __init__(
        self,
        *,
        max_in_flight: int | None = None,
        outcome: Callable[[ValueId], Outcome] | None = None,
        first_sequences: Mapping[tuple[str, int], int] | None = None,
        windowed: bool = True,
        renumbers: bool = False,
        trust_base_offset: bool = True,
    ) -> None:
        self.violations: list[Violation] = []
        self.max_span = 0
        self.losses_proved = 0
        """How often the answers have proved a loss."""
        self._max_in_flight = max_in_flight
        self._outcome = outcome
        self._first_sequences = first_sequences or {}
        self._windowed = windowed
        self._renumbers = renumbers
        self._before_append = _BEFORE_APPEND - (frozenset() if trust_base_offset else _TWO_FACED)
        self._partitions: dict[tuple[str, int], _Partition] = {}
        # Producer ids under which another producer writes, as a leader has said.
        self._shared: set[int] = set()
        self._requests: dict[object, dict[object, dict[tuple[str, int], _Carried]]] = {}

    def wrote(self, connection: object, request: object, batches: Sequence[WireBatch]) -> None:
        """A Produce request was given to the socket; `connection` and `request` name them.

        `request` must be unique on its connection.
        """
        carried = {(b.topic, b.partition): self._write(connection, b) for b in batches}
        requests = self._requests.setdefault(connection, {})
        requests[request] = carried
        if self._max_in_flight is not None and len(requests) > self._max_in_flight:
            self._report(Anomaly.IN_FLIGHT, f"{len(requests)} of {self._max_in_flight}")

    def answered(self, connection: object, request: object, answers: Sequence[WireAnswer]) -> None:
        """An answer reached the producer. What it does not name stays in doubt."""
        left = self._requests.get(connection, {}).pop(request, {})
        for answer in answers:
            carried = left.pop((answer.topic, answer.partition), None)
            if carried is not None:
                self._answer(carried, answer)
        for carried in left.values():
            _doubt(carried)

    def lost(self, connection: object, unwritten: Collection[object] = ()) -> None:
        """The producer knows that a connection is gone, or has closed it.

        `unwritten`: requests of which it knows that no byte was written.
        """
        for request, carried in self._requests.pop(connection, {}).items():
            for each in carried.values():
                if request in unwritten:
                    each.partition.outstanding -= 1
                    if each.sent is not None:
                        each.sent.outstanding -= 1
                else:
                    _doubt(each)

    def leader_changed(self, topic: str, partition: int) -> None:
        """The producer has learned of another leader epoch: the window is the default again."""
        state = self._partition(topic, partition)
        state.era += 1
        state.start_over()

    def topic_recreated(self, topic: str) -> None:
        """The producer has learned that the topic is another one now: its accounts start anew."""
        for key in [key for key in self._partitions if key[0] == topic]:
            self._partitions[key] = _Partition()

    def cluster_changed(self) -> None:
        """The producer has moved to another cluster: every account starts anew."""
        self._partitions.clear()
        self._shared.clear()

    # -- losses of the broker's ---------------------------------------------------------------

    def loss_reported(self, topic: str, partition: int) -> None:
        """The producer has raised a data-loss event for a partition."""
        state = self._partition(topic, partition)
        state.losses.clear()
        state.gap = None

    def refused(self, topic: str, partition: int, value: ValueId) -> None:
        """A record is about to end UNKNOWN because OUT_OF_ORDER was all the leader had to say."""
        state = self._partition(topic, partition)
        identity = None if state.newest is None else state.identities[state.newest]
        if identity is None or not identity.order:
            return
        head = identity.batches[identity.order[0]]
        if value in _values(head) and self._gapless(identity, head):
            self._lost(state, f"{topic}-{partition}: {value} ended UNKNOWN over a gap")

    def unreported_losses(self) -> list[Violation]:
        """The losses that the answers proved and that no event followed."""
        return [
            Violation(Anomaly.EVENT, f"none raised: {detail}")
            for state in self._partitions.values()
            for detail in state.losses
        ]

    def _lost(self, state: _Partition, detail: str) -> None:
        self.losses_proved += 1
        state.losses.append(detail)

    def _gapless(self, identity: _Identity, head: _Sent) -> bool:
        """Whether all below a batch is acknowledged, and no number of its identity was given up."""
        before = [sent for base, sent in identity.batches.items() if base < head.base]
        if identity.disowned or identity.producer_id in self._shared:
            return False
        if not before or not all(sent.proved for sent in before):
            return False
        # Doubt where the leader may have forgotten us is not settled by a later success.
        if any(self._outcomes(sent) != {Outcome.ACKED} for sent in before if sent.ambiguous):
            return False
        others = (sent for base, sent in identity.batches.items() if base != head.base)
        given_up = {Outcome.NOT_WRITTEN, Outcome.UNKNOWN}
        return not any((self._outcomes(sent) or set()) & given_up for sent in others)

    def _watch_success(
        self, state: _Partition, identity: _Identity, sent: _Sent, answer: WireAnswer
    ) -> None:
        if state.newest is None or state.identities[state.newest] is not identity:
            return
        where = f"{answer.topic}-{answer.partition}"
        # What was given up meanwhile leaves a hole of its own.
        awaited = Outcome.PENDING in (self._outcomes(sent) or ())
        below = (identity.batches[base] for base in identity.order if base < sent.base)
        if awaited and any(not (lower.outstanding or lower.ambiguous) for lower in below):
            self._lost(state, f"{where}: sequence {sent.base} was accepted over a hole")
        last, this = state.acked_last, (state.newest, sent.base)
        older = last is not None and last[0] == this[0] and sent.base <= last[1]
        if answer.base_offset < 0 or older:
            return
        if answer.base_offset < state.acked_end:
            self._lost(state, f"{where}: offset {answer.base_offset} after {state.acked_end - 1}")
            state.acked_end = 0
        state.acked_last = this
        state.acked_end = max(state.acked_end, answer.base_offset + sent.count)

    def _watch_gap(self, state: _Partition, identity: _Identity, sent: _Sent) -> None:
        asked = sent.ambiguous or sent.outstanding or identity.order[:1] != [sent.base]
        if not asked and self._gapless(identity, sent):
            state.gap = sent

    # -- writing ------------------------------------------------------------------------------

    def _partition(self, topic: str, index: int) -> _Partition:
        state = self._partitions.get((topic, index))
        if state is None:
            state = self._partitions[topic, index] = _Partition()
        return state

    def _write(self, connection: object, batch: WireBatch) -> _Carried:
        state = self._partition(batch.topic, batch.partition)
        if state.outstanding and state.connection != connection:
            self._report(Anomaly.TWO_ROUTES, _name(batch))
        if state.connection != connection:
            state.start_over()
        state.connection = connection
        state.outstanding += 1
        header = _BATCH_HEADER.unpack_from(batch.data)
        producer_id, epoch, sequence, count = header[9:13]
        if producer_id < 0:
            return _Carried(state, None, None, state.era)
        identity = self._identity(state, batch, (producer_id, epoch))
        known = identity.unwrap(sequence) in identity.batches
        if state.outstanding > 1 and not state.gate and not (known and state.asking):
            self._report(Anomaly.GATE, f"{_name(batch)}: sequence {sequence} in company")
        sent = self._place(state, identity, batch, identity.unwrap(sequence), count)
        sent.attempts += 1
        sent.outstanding += 1
        return _Carried(state, identity, sent, state.era)

    def _identity(self, state: _Partition, batch: WireBatch, key: tuple[int, int]) -> _Identity:
        identity = state.identities.get(key)
        if key == state.newest and identity is not None:
            return identity
        if identity is not None:
            self._report(Anomaly.EPOCH_OVERLAP, f"{_name(batch)}: {key} again after {state.newest}")
            return identity
        for older, account in state.identities.items():
            for sent in account.batches.values():
                if sent.outstanding:
                    self._report(
                        Anomaly.EPOCH_OVERLAP,
                        f"{_name(batch)}: {key} while {older} #{sent.base} is outstanding",
                    )
                elif sent.ambiguous and not sent.proved and not self._given_up(sent):
                    self._report(
                        Anomaly.EPOCH_OVERLAP,
                        f"{_name(batch)}: {key} while {older} #{sent.base} is in doubt",
                    )
        state.gate = state.asking = False
        self._watch_new_identity(state, batch)
        if state.newest is not None and state.newest[0] == key[0] and key[1] <= state.newest[1]:
            self._report(Anomaly.EPOCH_OVERLAP, f"{_name(batch)}: {key} after {state.newest}")
        first = 0
        if not state.identities:
            first = self._first_sequences.get((batch.topic, batch.partition), 0)
        state.newest = key
        identity = state.identities[key] = _Identity(key[0], first)
        return identity

    def _watch_new_identity(self, state: _Partition, batch: WireBatch) -> None:
        gap, state.gap = state.gap, None
        if gap is None or state.newest is None:
            return
        # It may have been proved, or given up, for another reason meanwhile.
        pending = Outcome.PENDING in (self._outcomes(gap) or ())
        if pending and not gap.proved and self._gapless(state.identities[state.newest], gap):
            self._lost(state, f"{_name(batch)}: sequence {gap.base} was refused over a gap")

    def _given_up(self, sent: _Sent) -> bool:
        outcomes = self._outcomes(sent)
        return self._renumbers or outcomes is None or Outcome.PENDING not in outcomes

    def _outcomes(self, sent: _Sent) -> set[Outcome] | None:
        if self._outcome is None:
            return None
        return {self._outcome(value) for value in _values(sent)}

    def _take_in_what_was_read(self, identity: _Identity, base: int) -> None:
        """Doubt may have been settled by reading the log, which is not seen here."""
        for before in identity.order:
            sent = identity.batches[before]
            if before < base and sent.ambiguous and not sent.outstanding:
                sent.proved |= self._outcomes(sent) == {Outcome.ACKED}

    def _place(
        self, state: _Partition, identity: _Identity, batch: WireBatch, base: int, count: int
    ) -> _Sent:
        known = identity.batches.get(base)
        if known is not None:
            if known.data == batch.data:
                return known
            if not (known.split and not known.outstanding and count < known.count):
                self._report(
                    Anomaly.CHANGED_RETRY, f"{_name(batch)}: sequence {base}, {count} records"
                )
                return known
            if base in identity.order:
                identity.order.remove(base)
            identity.gaps.append((base, base + known.count))
        sent = identity.batches[base] = _Sent(base, count, batch.data)
        insort(identity.order, base)
        self._advance(identity, batch, base, base + count)
        if identity.span_to(base) > state.window:
            self._take_in_what_was_read(identity, base)
        span = identity.span_to(base)
        self.max_span = max(self.max_span, span)
        if self._windowed and span > state.window:
            self._report(Anomaly.SPAN, f"{_name(batch)}: {span} of {state.window}, sequence {base}")
        return sent

    def _advance(self, identity: _Identity, batch: WireBatch, base: int, end: int) -> None:
        for position, (first, last) in enumerate(identity.gaps):
            if first == base and end <= last:
                identity.gaps[position : position + 1] = [(end, last)] if end < last else []
                return
        if base != identity.frontier:
            self._report(
                Anomaly.GAP, f"{_name(batch)}: sequence {base} where {identity.frontier} is next"
            )
        identity.frontier = max(end, identity.frontier)

    # -- answers ------------------------------------------------------------------------------

    def _answer(self, carried: _Carried, answer: WireAnswer) -> None:
        state, sent = carried.partition, carried.sent
        state.outstanding -= 1
        if sent is None or carried.identity is None:
            return
        sent.outstanding -= 1
        sent.split = False
        if answer.code == 0:
            self._watch_success(state, carried.identity, sent, answer)
            carried.identity.prove(sent.base)
            if carried.era == state.era:
                state.gate, state.asking = True, False
                told = _DEFAULT_WINDOW if answer.retained is None else answer.retained
                state.window = max(1, min(told, _MAX_WINDOW))
            return
        if not sent.proved:
            state.gate = False
            # A permanent refusal of what is in doubt is asked about like OUT_OF_ORDER, but a code
            # that nobody knows, or that may follow the append, shows nothing of the leader's state.
            refused = answer.code in self._before_append and answer.base_offset < 0
            state.asking |= answer.code in (45, 46) or (sent.ambiguous and refused)
        carried.identity.disowned |= answer.code == _UNKNOWN_PRODUCER_ID
        if answer.code == _INVALID_PRODUCER_EPOCH:
            self._shared.add(carried.identity.producer_id)
        if answer.code == _OUT_OF_ORDER:
            self._watch_gap(state, carried.identity, sent)
        if answer.code not in self._before_append or answer.base_offset >= 0:
            sent.ambiguous = True
        elif answer.code in _TOO_LARGE and not sent.ambiguous:
            sent.split = True

    def _report(self, anomaly: Anomaly, detail: str) -> None:
        self.violations.append(Violation(anomaly, detail))


def _doubt(carried: _Carried) -> None:
    carried.partition.outstanding -= 1
    carried.partition.gate = False
    if carried.sent is not None:
        carried.sent.outstanding -= 1
        carried.sent.ambiguous = True
        carried.sent.split = False


def _values(sent: _Sent) -> list[ValueId]:
    values = [parse_value(record.value) for record in read_batches(sent.data)[0].records()]
    return [value for value in values if value is not None]


def _name(batch: WireBatch) -> str:
    return f"{batch.topic}-{batch.partition}"
