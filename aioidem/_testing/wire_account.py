"""What one producer has sent to each partition, and what the answers have proved.

The `WireMonitor` keeps this account from the bytes on the wire alone. It shares no code with the
engine that it watches, not even the arithmetic of sequences.
"""

from __future__ import annotations

from bisect import insort
from typing import Final, NamedTuple

from aioidem._testing.history import ValueId, parse_value
from aioidem._testing.wire_frames import batch_values

__all__ = [
    "DEFAULT_WINDOW",
    "Carried",
    "Evidence",
    "Identity",
    "PartitionAccount",
    "Sent",
    "WireAnswer",
    "WireBatch",
]

DEFAULT_WINDOW: Final = 5
"""Batches per producer that a leader remembers if it does not say otherwise (KIP-1269)."""

_WRAP: Final = 1 << 31


class WireBatch(NamedTuple):
    """One partition's batch of a Produce request.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        data: Bytes of the record batch.
    """

    topic: str
    partition: int
    data: bytes

    @property
    def where(self) -> str:
        """Return topic and partition, for messages."""
        return f"{self.topic}-{self.partition}"


class WireAnswer(NamedTuple):
    """One partition's part of an answer to Produce.

    Attributes:
        topic: Name of the topic.
        partition: Index of the partition.
        code: Error code.
        base_offset: Base offset; -1 if the answer has none.
        retained: How many batches per producer the leader retains (KIP-1269); None if the answer
            does not say it.
    """

    topic: str
    partition: int
    code: int
    base_offset: int
    retained: int | None = None


class Sent:
    """One batch that was written to a socket.

    Attributes:
        base: First sequence, not wrapped.
        count: How many sequences.
        data: Bytes of the batch.
        attempts: How often the batch was written.
        outstanding: How many attempts are neither answered nor lost.
        proved: Whether an answer has proved that the batch is in the log.
        ambiguous: Whether an attempt may have been appended, without an answer that proves it.
        split: Whether the last answer was MESSAGE_TOO_LARGE and no attempt can have been appended.
    """

    __slots__ = ("ambiguous", "attempts", "base", "count", "data", "outstanding", "proved", "split")

    def __init__(self, base: int, count: int, data: bytes) -> None:
        self.base = base
        self.count = count
        self.data = data
        self.attempts = 0
        self.outstanding = 0
        self.proved = False
        self.ambiguous = False
        self.split = False

    def values(self) -> list[ValueId]:
        """Return the `ValueId` of each record; records whose value has none are left out."""
        values = [parse_value(record.value) for record in batch_values(self.data)]
        return [value for value in values if value is not None]


class Identity:
    """Everything that was sent to one partition under one producer id and epoch.

    Attributes:
        producer_id: The producer id.
        frontier: The sequence after the highest one that was sent, not wrapped.
        batches: The batches by their first sequence.
        order: First sequences, ascending, of the oldest batch that no answer has proved stored, and
            of all later batches.
        gaps: Ranges of sequences whose batch was refused as too large; smaller batches fill them.
        disowned: Whether the leader has said that it does not know the producer id.
    """

    __slots__ = ("batches", "disowned", "frontier", "gaps", "order", "producer_id")

    def __init__(self, producer_id: int, first: int) -> None:
        self.producer_id = producer_id
        self.frontier = first
        self.batches: dict[int, Sent] = {}
        self.order: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.disowned = False

    def unwrap(self, sequence: int) -> int:
        """Return the number that a sequence from the wire would have if sequences did not wrap.

        On the wire 0 follows 2**31 - 1, so several numbers are possible. The result is the one that
        is nearest to ``frontier``.
        """
        ahead = (sequence - self.frontier) % _WRAP
        return self.frontier + (ahead if ahead < _WRAP // 2 else ahead - _WRAP)

    def span_to(self, base: int) -> int:
        """Count the batches from the oldest that is not `proved` to the one at sequence ``base``.

        Both of these batches are counted.
        """
        oldest = self.oldest(base)
        return sum(1 for b in self.order if oldest <= b <= base)

    def oldest(self, base: int) -> int:
        """Return the first sequence of the oldest batch that is not proved; ``base`` if all are."""
        return next((b for b in self.order if not self.batches[b].proved), base)

    def prove(self, base: int) -> None:
        """Note that the batch at ``base`` and all earlier batches are in the log."""
        for b in self.order:
            if b <= base:
                self.batches[b].proved = True
        # `order` begins with the oldest batch that is not proved: drop proved ones at the front.
        while self.order and self.batches[self.order[0]].proved:
            self.order.pop(0)

    def add(self, base: int, count: int, data: bytes) -> Sent:
        """Add a batch that is sent for the first time."""
        sent = self.batches[base] = Sent(base, count, data)
        insort(self.order, base)
        return sent

    def open_gap(self, known: Sent) -> None:
        """Let smaller batches have the sequences of a batch that was refused as too large."""
        if known.base in self.order:
            self.order.remove(known.base)
        self.gaps.append((known.base, known.base + known.count))

    def fill_gap(self, base: int, end: int) -> bool:
        """Remove sequences from the gap that begins at ``base``; return whether that gap exists.

        Args:
            base: The first sequence to remove.
            end: The sequence after the last one to remove.
        """
        for position, (first, last) in enumerate(self.gaps):
            if first == base and end <= last:
                self.gaps[position : position + 1] = [(end, last)] if end < last else []
                return True
        return False


class Evidence:
    """What `LossWatch` knows about losses in one partition.

    Attributes:
        acked_last: The newest batch that was acknowledged with an offset: its producer id and
            epoch, and its first sequence.
        acked_end: The offset after the highest acknowledged one. When an offset proves a loss,
            earlier acknowledgements cease to count.
        gap: The batch whose refusal showed that the leader has lost earlier batches, until a
            data-loss event or a new identity.
        losses: The losses proved since the last data-loss event, in words.
    """

    __slots__ = ("acked_end", "acked_last", "gap", "losses")

    def __init__(self) -> None:
        self.acked_last: tuple[tuple[int, int], int] | None = None
        self.acked_end = 0
        self.gap: Sent | None = None
        self.losses: list[str] = []


class PartitionAccount:
    """What was sent to one partition, and what its leader has shown.

    Attributes:
        identities: What was sent, by producer id and epoch.
        newest: Producer id and epoch of the newest identity.
        connection: The connection that carried the last batch.
        outstanding: How many batches are neither answered nor lost.
        window: How many batches the leader retains, as its last answer without an error says; 5
            before the first such answer.
        era: Number of leader changes that the producer has noticed.
        gate: Whether several batches may be outstanding: the last answer was NONE, which shows that
            the leader has the producer's state.
        asking: Whether several batches may be resent at once although `gate` is False.
        evidence: What the answers have shown about losses.
    """

    __slots__ = (
        "asking",
        "connection",
        "era",
        "evidence",
        "gate",
        "identities",
        "newest",
        "outstanding",
        "window",
    )

    def __init__(self) -> None:
        self.identities: dict[tuple[int, int], Identity] = {}
        self.newest: tuple[int, int] | None = None
        self.connection: object = None
        self.outstanding = 0
        self.window = DEFAULT_WINDOW
        self.era = 0
        self.gate = self.asking = False
        self.evidence = Evidence()

    @property
    def current(self) -> Identity | None:
        """Return the newest identity; None before anything was sent."""
        return None if self.newest is None else self.identities[self.newest]

    @property
    def unproved_in_flight(self) -> bool:
        """Whether an attempt is outstanding at a batch that no answer has proved stored."""
        return any(
            sent.outstanding and not sent.proved
            for identity in self.identities.values()
            for sent in identity.batches.values()
        )

    def start_over(self) -> None:
        """Reset the window and the gate, because the leader or the connection has changed."""
        self.window = DEFAULT_WINDOW
        self.gate = self.asking = False


class Carried(NamedTuple):
    """One batch of an outstanding request.

    Attributes:
        partition: The account of the batch's partition.
        identity: The batch's identity; None without idempotence.
        sent: The batch; None without idempotence.
        era: The `era` of the `PartitionAccount` when the batch was sent.
    """

    partition: PartitionAccount
    identity: Identity | None
    sent: Sent | None
    era: int

    def withdraw(self) -> None:
        """Note that no byte of the batch was written."""
        self.partition.outstanding -= 1
        if self.sent is not None:
            self.sent.outstanding -= 1

    def doubt(self) -> None:
        """Note that the batch will not be answered, so it may be in the log or not."""
        self.partition.outstanding -= 1
        self.partition.gate = False
        if self.sent is not None:
            self.sent.outstanding -= 1
            self.sent.ambiguous = True
            self.sent.split = False
