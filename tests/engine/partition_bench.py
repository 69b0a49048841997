"""Drive one `PartitionState` without an engine: the test seals, sends and answers its batches.

`Bench` has the partition and the time; `Told` keeps what the partition reports to the rest of the
engine, in the place of `Effects`. Nothing is decided here: a test sends which batch it wants, also
one that the engine would not send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from aioidem._broker.virtual import idempotent_batch
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.classify import classify
from aioidem._engine.effects import Effects
from aioidem._engine.failed_attempts import Refusal
from aioidem._engine.idempotence import ProducerIdentity, wire_sequence
from aioidem._engine.meters import Meters
from aioidem._engine.overdue import LeaderStatus
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.recovery import Rung
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.settlement import Settlement
from aioidem._protocol.produce import PartitionAnswer
from aioidem.errors import KafkaError
from aioidem.structs import DeliveryStatus

from .driver import T, topic_id

FIRST: Final = ProducerIdentity(7, 0)
SECOND: Final = ProducerIdentity(7, 1)
HOME: Final = Route(1, 1, 0)
"""Connection 1 to broker 1, in leader epoch 0."""
RECONNECTED: Final = Route(2, 1, 0)
"""Another connection to the same leader."""
MOVED: Final = Route(3, 2, 1)
"""A connection to the next leader."""
LEADER: Final = LeaderStatus(
    "broker 1 (b1:9092)", leads=True, down_since=None, attempts=0, error=None
)
TIMEOUT: Final = 120.0
GRACE: Final = 30.0
PAUSE: Final = 10.0
STAMP_MS: Final = 1_000_000
EXPIRATION: Final = 86_400.0
HALF_MS: Final = 43_200_000
"""Half of `EXPIRATION`, in milliseconds: older records make a partition suspect."""


class Told(Effects):
    """What a partition has told the rest of the engine, in order."""

    def __init__(self) -> None:
        self.meters = Meters()
        self.settlements: list[Settlement] = []

        def keep(settlement: Settlement) -> None:
            self.settlements.append(settlement)

        self.settle = keep
        self.fatal_error = None
        self.events: list[tuple[object, ...]] = []
        self.gates: list[tuple[float, float]] = []
        """From when to when a first-ack gate was closed for a batch."""

    def take(self) -> list[tuple[object, ...]]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def names(self) -> list[object]:
        """Return what kind each event since the last call is."""
        return [event[0] for event in self.take()]

    def refresh_metadata(self) -> None:
        self.events.append(("metadata",))

    def bump(self, where: str, identity: ProducerIdentity | None, reason: str) -> None:
        self.events.append(("bump", where, identity, reason))

    def data_loss(self, where: str, reason: str) -> None:
        self.events.append(("data loss", where, reason))

    def waited_at_gate(self, since: float, now: float) -> None:
        self.gates.append((since, now))

    def fatal(self, error: KafkaError) -> None:
        self.events.append(("fatal", error))

    def fail_transaction(self, where: str, error: KafkaError) -> None:
        self.events.append(("transaction", where, error))

    def window_changed(self, where: str, route: Route | None, before: int, after: int) -> None:
        self.events.append(("window", where, route, before, after))

    def disprove(
        self, topic: str, partition: int, route: Route | None, disproof: Disproof, now: float
    ) -> None:
        self.events.append(("disproof", topic, partition, route, disproof, now))


class Bench:
    """A partition with a route and, if it is idempotent, with the identity `FIRST`.

    Its back-off is 1 s, then 2 s and so on. The options are those of `PartitionState`.
    """

    def __init__(self, *, idempotent: bool = True, **options: Any) -> None:
        self.now = 100.0
        self.told = Told()
        self.state = PartitionState(
            T,
            0,
            topic_id(T),
            idempotent=idempotent,
            retry=Backoff(1.0, 64.0, lambda: 0.5),
            pause=PAUSE,
            **options,
        )
        if idempotent:
            self.state.adopt(FIRST)
        self.state.follow(HOME)

    # -- the caller's side

    def record(
        self,
        queued_at: float = 0.0,
        deadline: float | None = None,
        *,
        size: int = 50,
        group: RecordGroup | None = None,
    ) -> PendingRecord:
        record = PendingRecord(None, b"v", (), STAMP_MS, None, size)
        record.queued_at = queued_at
        record.deadline = queued_at + TIMEOUT if deadline is None else deadline
        record.group = group
        return record

    def queue(self, queued_at: float = 0.0, deadline: float | None = None) -> PendingRecord:
        """Append a record to the partition's queue."""
        record = self.record(queued_at, deadline)
        self.state.queue.append(record, queued_at)
        return record

    def seal(
        self,
        records: int | Sequence[PendingRecord] = 1,
        *,
        deadline: float = 1000.0,
        stamp_ms: int = STAMP_MS,
    ) -> Batch:
        """Add a batch of these records, or of so many new ones, to the unresolved batches."""
        state = self.state
        if isinstance(records, int):
            records = [self.record(deadline=deadline) for _ in range(records)]
        identity = state.ledger.identity
        base = 0 if identity is None else state.ledger.take(len(records))
        batch = Batch(
            ordinal=state.batches.next_ordinal,
            records=records,
            data=self.data(base, len(records), identity),
            identity=identity,
            base=base,
            deadline=deadline,
            max_timestamp_ms=stamp_ms,
        )
        state.enlist(batch)
        return batch

    @staticmethod
    def data(base: int, count: int, identity: ProducerIdentity | None) -> bytes:
        """Return the bytes of a batch."""
        producer_id, epoch = (-1, -1) if identity is None else identity
        sequence = -1 if identity is None else wire_sequence(base)
        return idempotent_batch(sequence, count, producer_id=producer_id, epoch=epoch)

    def send(self, batch: Batch | None = None, **options: Any) -> Batch:
        """Send a batch; without one, seal a new one."""
        if batch is None:
            batch = self.seal(**options)
        self.state.send(batch, self.now)
        return batch

    def pipelined(self, count: int, *, retained: int | None = None) -> list[Batch]:
        """Acknowledge a first batch at offset 0, then send so many batches of one record."""
        self.ack(self.send(), 0, retained=retained)
        batches = [self.send() for _ in range(count)]
        self.told.events.clear()
        self.told.gates.clear()
        self.told.settlements.clear()
        return batches

    # -- the leader's side

    def ack(self, batch: Batch, offset: int = -1, *, current: bool = True, **fields: Any) -> None:
        """Answer a batch with error NONE."""
        answer = PartitionAnswer(T, None, 0, 0, offset, **fields)
        self.state.acknowledgements.on_ack(batch, answer, self.now, current=current, out=self.told)

    def refuse(
        self,
        batch: Batch,
        code: int,
        offset: int = -1,
        *,
        culprits: Mapping[int, KafkaError] | None = None,
        innocent: Batch | None = None,
    ) -> bool:
        """Answer a batch with an error code; its error is `error(code)`."""
        refusal = Refusal(classify(code, offset), error(code), culprits or {}, innocent)
        return self.state.failures.on_error(batch, refusal, self.now, self.told)

    def lose(self, *batches: Batch, written: bool = True) -> None:
        """End attempts without an answer."""
        for batch in batches:
            self.state.failures.on_lost(batch, written=written, now=self.now)

    def doubt(self, count: int, *, retained: int | None = None) -> list[Batch]:
        """Return so many batches in doubt, behind one that was acknowledged."""
        batches = self.pipelined(count, retained=retained)
        self.lose(*batches)
        return batches

    def expire(self, now: float, answered_at: float | None = None) -> None:
        self.now = now
        self.state.deadlines.expire(now, GRACE, TIMEOUT, answered_at, LEADER, self.told)

    def advance(self, **options: Any) -> None:
        self.state.ladder.advance(self.now, self.told, **options)

    def suspect(self) -> None:
        """Let the records be so old that the leader may have forgotten the producer."""
        self.state.assess_memory(STAMP_MS + 2.0 * HALF_MS, EXPIRATION)
        assert self.state.suspicion.suspect

    # -- what tests look at

    def rung(self) -> Rung:
        """Return on which rung of the ladder the partition stands."""
        return self.state.recovery.rung

    @property
    def outcomes(self) -> list[tuple[DeliveryStatus, int, int, int]]:
        """Return the status, first offset, attempts and number of records of each settlement."""
        return [
            (
                each.outcome.status,
                each.outcome.base_offset,
                each.outcome.attempts,
                len(each.records),
            )
            for each in self.told.settlements
        ]

    @property
    def statuses(self) -> list[DeliveryStatus]:
        return [each.outcome.status for each in self.told.settlements]


def error(code: int) -> KafkaError:
    """Return the error of a refusal."""
    return KafkaError(f"code {code}")
