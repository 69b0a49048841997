"""Sealing, which closes and encodes a batch: how large it may grow, and how it is split."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.backoff import Backoff
from aioidem._engine.batch import Batch
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.partition import PartitionState
from aioidem._engine.record import PendingRecord, RecordGroup
from aioidem._engine.sealing import Sealer
from aioidem._engine.topics import TopicState
from aioidem._records import BATCH_OVERHEAD, BatchBody, Codec, read_batches, record_size_bound

from .driver import Request, Rig, made_link


class Bench:
    """A `Sealer` with a partition, its topic and a connection, without a `ProducerCore`."""

    def __init__(self, **options: object) -> None:
        self.config = ProducerConfig.build("b:1", **options)  # type: ignore[arg-type]
        self.sealer = Sealer(self.config)
        self.topic = TopicState("t", self.config.batch_size, lambda: 0.5)
        self.link = made_link()
        backoff = Backoff(0.1, 1.0, lambda: 0.5)
        self.state = PartitionState("t", 0, None, idempotent=True, retry=backoff, pause=30.0)
        self.state.ledger.adopt(ProducerIdentity(77, 3))

    def fill(self, count: int, size: int = 100, *, random_bytes: bool = False) -> None:
        source = random.Random(1)
        for number in range(count):
            value = source.randbytes(size) if random_bytes else b"%08d" % number + b"." * size
            headers = [("h", b"%d" % number)]
            record = PendingRecord(
                b"k", value, headers, 1000 + number, 0,
                record_size_bound(b"k", value, headers),
            )  # fmt: skip
            record.deadline = 50.0 + number
            self.state.queue.append(record, 0.0)

    def rate(self, bytes_per_second: float) -> None:
        self.link.goodput.acknowledge(
            int(bytes_per_second), sent_at=0.0, delivered_at_send=0, now=1.0
        )

    def told(self, nbytes: int | None) -> None:
        """Set the `max.message.bytes` that the leader answers to DescribeConfigs."""
        self.link.limits.of("t").tell(nbytes, 0.0)

    def seal(self, now: float = 0.0) -> Batch:
        batch = self.sealer.seal(self.state, self.topic, self.link, now, 1 << 30, alone=True)
        assert batch is not None
        self.state.enlist(batch)
        return batch

    def limit(self, now: float = 0.0) -> int:
        most = self.sealer.most(self.topic, self.link, now)
        return self.sealer.limit(self.state, self.link, most)


def test_numbers_are_taken_when_a_batch_is_sealed() -> None:
    """A batch takes its sequence when it is sealed (KafkaJS #598)."""
    bench = Bench(batch_size=1000)
    bench.fill(20)
    assert bench.state.ledger.next == 0
    first, second = bench.seal(), bench.seal()
    assert (first.base, second.base) == (0, first.count)
    (read,) = read_batches(second.data)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (77, 3, first.count)
    assert second.ordinal == first.ordinal + 1
    assert second.deadline == second.records[0].deadline


def test_a_batch_is_of_batch_size_while_the_window_is_open() -> None:
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    assert bench.limit() == 1000
    bench.fill(100)
    assert 900 < len(bench.seal().data) <= 1000


def test_what_piled_up_behind_a_full_window_leaves_as_one_batch() -> None:
    """With late sealing, records that piled up behind a full window leave as one batch."""
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    bench.told(1 << 30)
    bench.state.queue.blocked = True
    assert bench.limit() == 100_000
    bench.fill(100)
    bench.state.queue.blocked = True
    assert bench.seal().count == 100


def test_what_a_window_of_batches_cannot_carry_leaves_as_larger_ones() -> None:
    """A batch may outgrow `batch_size` if the queue has more bytes than a window of such batches.

    The window is the number of batches that may be in flight at once: 5 here, later 20. The queue
    need not wait until the window is full. Otherwise the work per batch would limit the rate of
    calls with many records.
    """
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    bench.told(1 << 30)
    bench.state.queue.bytes = 5000
    assert bench.limit() == 1000
    bench.state.queue.bytes = 5001
    assert bench.limit() == 100_000
    bench.state.window.learn(20)
    assert bench.limit() == 1000


def test_late_sealing_can_be_turned_off() -> None:
    bench = Bench(batch_size=1000, late_sealing=False)
    bench.rate(1e9)
    bench.state.queue.blocked = True
    assert bench.limit() == 1000


def test_a_thin_link_is_not_choked_by_grown_batches() -> None:
    """A batch grows only if all bytes in flight can be sent in a quarter of the request timeout."""
    bench = Bench(batch_size=1000, max_request_size=1_000_000, request_timeout=40.0)
    bench.state.queue.blocked = True
    bench.told(1 << 30)
    assert bench.limit() == 1000, "without a measured goodput batch.size is the limit"
    bench.rate(5000)
    assert bench.limit() == 50_000
    bench.link.bytes_in_flight = 30_000
    assert bench.limit() == 20_000
    bench.link.bytes_in_flight = 1_000_000
    assert bench.limit() == 1000


def test_the_ceiling_of_the_topic_binds_everything() -> None:
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    bench.told(1 << 30)
    bench.state.queue.blocked = True
    bench.topic.too_large(60_000, 0.0)
    assert bench.limit() == 30_000
    bench.topic.too_large(800, 0.0)
    assert bench.limit() == 400
    assert bench.limit(4000.0) == 100_000


def test_a_batch_outgrows_batch_size_only_to_what_its_topic_is_known_to_take() -> None:
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    bench.state.queue.blocked = True
    assert bench.limit() == 1000, "without a known limit of the topic batch.size is the limit"
    bench.link.limits.of("t").accept(7000)
    assert bench.limit() == 7000, "a batch of this size was acknowledged"
    bench.told(5000)
    assert bench.limit() == 5000
    bench.told(600)
    assert bench.limit() == 600, "batch.size yields to a lower limit of the topic"
    bench.told(None)
    bench.link.limits.of("t").refuse(6500)
    assert bench.limit() == 1000


def test_what_the_topic_tells_replaces_half_of_what_it_refused_where_it_explains_the_refusal() -> (
    None
):
    bench = Bench(batch_size=1000, max_request_size=100_000)
    bench.rate(1e9)
    bench.state.queue.blocked = True
    bench.told(50_000)
    bench.topic.too_large(30_000, 0.0)
    assert bench.limit() == 15_000, "a refused size counts before the limit that the leader named"
    bench.told(25_000)
    assert bench.limit() == 25_000


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_no_batch_leaves_larger_than_it_may_be_however_wrong_the_estimate_was(codec: str) -> None:
    bench = Bench(batch_size=4000, compression_type=codec)
    for _ in range(150):
        bench.fill(400)
        bench.seal()
        bench.state.queue.empty()
    bench.fill(400, random_bytes=True)
    queued = [record.value for record in bench.state.queue.records]
    nbytes, bench.state.queue.flushing = bench.state.queue.bytes, True
    first = bench.state.ledger.next
    batch = bench.seal()
    assert 3000 < len(batch.data) <= 4000
    left = bench.state.queue
    assert [r.value for r in [*batch.records, *left.records]] == queued
    assert left.bytes == nbytes - sum(record.size for record in batch.records)
    assert left.flushing
    assert bench.state.ledger.next == first + batch.count


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_a_compressed_batch_fills_up_as_the_ratio_is_learned(codec: str) -> None:
    """Batches fill up to batch.size, and never exceed it, as the compression ratio is learned.

    KIP-126 describes the estimate of the ratio.
    """
    bench = Bench(batch_size=4000, compression_type=codec)
    counts, sizes = [], []
    for _ in range(150):
        bench.fill(400)
        batch = bench.seal()
        bench.state.queue.empty()
        counts.append(batch.count)
        sizes.append(len(batch.data))
    assert counts[-1] > 2 * counts[0]
    assert max(sizes) <= 4000


def test_incompressible_records_make_the_estimate_recover_at_once() -> None:
    bench = Bench(batch_size=4000, compression_type="lz4")
    for _ in range(150):
        bench.fill(400)
        bench.seal()
        bench.state.queue.empty()
    bench.fill(400, random_bytes=True)
    bench.seal()
    bench.state.queue.empty()
    bench.fill(400, random_bytes=True)
    assert len(bench.seal().data) <= 4000 * 1.02


def size(request: Request) -> int:
    return sum(len(part.data) for part in request.parts)


def random_values(count: int, nbytes: int) -> list[bytes]:
    source = random.Random(1)
    return [source.randbytes(nbytes) for _ in range(count)]


def requests_after_a_wrong_estimate(codec: str, *, random_first: bool) -> list[Request]:
    """Return the requests with random values for partition 0 and compressible ones for partition 1.

    Before that the engine has learned the compression ratio from compressible values, so its
    estimate is wrong for the random ones. The topic accepts more than a request may carry.
    """
    rig = Rig(
        partitions=2,
        batch_size=1000,
        max_request_size=4000,
        late_sealing=True,
        compression_type=codec,
    )
    rig.topic_limit = 1 << 20
    rig.start()
    for _ in range(150):
        rig.send(100)
        rig.now += 0.01
        rig.ack(rig.outstanding()[0])
    rig.ack_all()
    assert any(isinstance(step, steps.DescribeTopicLimit) for step in rig.asked)
    before = len(rig.everything)
    values = random_values(100, 100)
    if not random_first:
        rig.send(5, partition=1, poll=False)
    for value in values:
        rig.send(value=value, poll=False)
    if random_first:
        rig.send(5, partition=1, poll=False)
    rig.ack_all()
    requests = rig.everything[before:]
    sent = [part for request in requests for part in request.parts if part.partition == 0]
    assert [value for part in sent for value in part.values] == values
    rig.assert_drained()
    return requests


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_no_request_outgrows_max_request_size_however_wrong_the_estimate_was(codec: str) -> None:
    """A batch takes no more than its request has left, although it compresses worse than estimated.

    What does not fit goes with later requests, in order. In one of the two runs the request already
    has a batch of partition t-1.
    """
    runs = [requests_after_a_wrong_estimate(codec, random_first=each) for each in (False, True)]
    assert {len(requests[0].parts) for requests in runs} == {1, 2}
    assert max(size(request) for requests in runs for request in requests) <= 4000


def test_a_record_that_compression_enlarges_waits_for_a_request_with_room_for_it() -> None:
    """A single record goes behind another batch only if its compressed batch fits, too."""
    rig = Rig(partitions=2, batch_size=100, max_request_size=1000, compression_type="gzip")
    rig.start()
    first, second = random_values(2, 400)
    for length in range(400, 480):
        before = len(rig.everything)
        rig.send(value=first, poll=False)
        rig.send(value=(second * 2)[:length], partition=1, poll=False)
        rig.ack_all()
        assert max(size(request) for request in rig.everything[before:]) <= 1000
    counts = {len(request.parts) for request in rig.everything}
    assert counts == {1, 2}, "some pairs fit into one request, and some do not"
    rig.assert_drained()


def split(bench: Bench, batch: Batch) -> list[Batch]:
    return built(bench, bench.sealer.split(bench.state, batch, len(batch.data) // 2))


def built(bench: Bench, parts: list[Batch]) -> list[Batch]:
    """Give the parts of a batch their bytes, as each gets them when it is sent."""
    for part in parts:
        assert part.data == b""
        assert bench.sealer.build(bench.state, part)
    return parts


@pytest.mark.parametrize("codec", ["none", "gzip"])
@given(count=st.integers(2, 60), size=st.integers(0, 400), batch_size=st.integers(100, 20_000))
def test_split_parts_carry_the_same_numbers_and_records_between_them(
    codec: str, count: int, size: int, batch_size: int
) -> None:
    """The parts of a split batch carry its records and its sequences, in order."""
    bench = Bench(batch_size=1_000_000, compression_type=codec)
    bench.fill(count, size)
    whole = bench.seal()
    # The sealer that splits the batch has another batch.size, so that the batch may be larger or
    # smaller than that.
    most = len(whole.data) // 2
    other = Bench(batch_size=batch_size, compression_type=codec)
    parts = built(other, other.sealer.split(bench.state, whole, most))
    assert len(parts) >= 2
    assert [r for part in parts for r in part.records] == list(whole.records)
    expected = whole.base
    for number, part in enumerate(parts):
        (read,) = read_batches(part.data)
        assert read.base_sequence == part.base == expected
        assert (read.producer_id, read.producer_epoch) == (77, 3)
        assert read.count == part.count == len(part.records) > 0
        assert read.codec is Codec.from_name(codec)
        assert part.ordinal == whole.ordinal + number
        assert part.deadline == part.records[0].deadline
        pairs = zip(read.records(), part.records, strict=True)
        for found, record in pairs:
            assert (found.key, found.value) == (record.key, record.value)
            assert list(found.headers) == list(record.headers)
            assert found.timestamp_ms == record.timestamp_ms
        expected += part.count
    assert bench.state.ledger.next == whole.count


def test_splitting_ends_at_single_records() -> None:
    bench = Bench(batch_size=100_000)
    bench.fill(37)
    todo, rounds = [bench.seal()], 0
    while any(batch.count > 1 for batch in todo):
        todo = [
            part for batch in todo for part in (split(bench, batch) if batch.count > 1 else [batch])
        ]
        rounds += 1
        assert rounds < 20
    assert [batch.base for batch in todo] == list(range(37))


def test_a_split_makes_the_estimate_careful_again() -> None:
    """After a split the compression estimate is at least 1.0, so batches get smaller (KIP-126)."""
    bench = Bench(batch_size=4000, compression_type="gzip")
    for _ in range(100):
        bench.fill(400)
        bench.seal()
        bench.state.queue.empty()
    bench.fill(400)
    grown = bench.seal()
    bench.state.queue.empty()
    split(bench, grown)
    bench.fill(400)
    assert bench.seal().count < grown.count / 2


# -- with an encoder whose batches have chosen sizes

_OVERHEAD = BATCH_OVERHEAD


class Sized(Bench):
    """A sealer whose codec makes `per_record` bytes of each record, and keeps their number."""

    def __init__(self, per_record: int, codec: str = "gzip", **options: object) -> None:
        super().__init__(compression_type=codec, **options)
        self.encoded: list[int] = []

        def encode(records: Sequence[PendingRecord], codec: Codec, level: int | None) -> BatchBody:
            del level
            self.encoded.append(len(records))
            plain = _OVERHEAD + sum(record.size for record in records)
            stamps = [record.timestamp_ms for record in records]
            data = bytes(per_record * len(records))
            return BatchBody(data, codec, len(records), stamps[0], max(stamps), plain)

        self.sealer.encode = encode

    def into(self, room: int, *, alone: bool = True) -> Batch | None:
        """Seal a batch for a request with this room."""
        return self.sealer.seal(self.state, self.topic, self.link, 0.0, room, alone=alone)

    def group(self) -> None:
        """Let the records that wait be a group which fits into a request."""
        shared = RecordGroup(_OVERHEAD + 10)
        for record in self.state.queue.records:
            record.group = shared

    @property
    def waiting(self) -> int:
        return self.state.queue.count


def test_a_batch_that_came_out_too_large_is_cut_down_in_proportion() -> None:
    """More than five records of 100 bytes are too many; the others wait again."""
    bench = Sized(100, batch_size=100_000)
    bench.fill(10, 1)
    bench.state.queue.flush()
    batch = bench.into(_OVERHEAD + 500)
    assert batch is not None
    assert (batch.count, len(batch.data)) == (5, _OVERHEAD + 500)
    assert bench.encoded == [bench.encoded[0], 5]
    assert bench.encoded[0] > 5
    assert (bench.waiting, bench.state.queue.flushing) == (5, True)
    assert batch.records[0].value == b"%08d." % 0
    assert bench.state.queue.records[0].value == b"%08d." % 5


def test_a_batch_of_exactly_the_room_is_not_cut_down() -> None:
    for room, count in ((_OVERHEAD + 300, 3), (_OVERHEAD + 299, 2)):
        bench = Sized(100, batch_size=100_000)
        bench.fill(3, 1)
        batch = bench.into(room, alone=False)
        assert batch is not None
        assert batch.count == count


def test_two_records_that_do_not_fit_become_one() -> None:
    bench = Sized(1000, batch_size=100_000)
    bench.fill(2)
    batch = bench.into(500)
    assert batch is not None
    assert (batch.count, bench.waiting) == (1, 1)


@pytest.mark.parametrize(("alone", "left"), [(True, 0), (False, 1)])
def test_a_single_record_exceeds_the_room_of_an_empty_request_only(alone: bool, left: int) -> None:
    bench = Sized(1000, batch_size=100_000)
    bench.fill(1)
    bench.state.queue.flush()
    batch = bench.into(500, alone=alone)
    assert (batch is not None) is alone
    assert (bench.waiting, bench.state.queue.flushing) == (left, bool(left))
    assert bench.state.ledger.next == 1 - left


def test_a_group_waits_for_a_request_of_its_own_and_is_divided_only_if_that_is_too_small() -> None:
    for alone in (True, False):
        bench = Sized(200, batch_size=100_000)
        bench.fill(4)
        bench.group()
        batch = bench.into(600, alone=alone)
        assert (batch is not None) is alone
        assert batch is None or batch.count == 4
        assert bench.waiting == (0 if alone else 4)
    for per_record in (1000, 1001):
        bench = Sized(per_record, batch_size=100_000, max_request_size=4000 + _OVERHEAD)
        bench.fill(4)
        bench.group()
        batch = bench.into(1 << 30)
        assert batch is not None
        assert batch.count == (4 if per_record == 1000 else 3)


def test_a_batch_has_no_more_records_than_the_sequences_that_are_left() -> None:
    bench = Sized(1, batch_size=100_000)
    bench.fill(9)
    bench.state.window.sequence_cap = 4
    batch = bench.into(1 << 30)
    assert batch is not None
    assert batch.count == 4


def test_a_batch_knows_its_numbers_and_how_well_it_was_compressed() -> None:
    bench = Sized(10, batch_size=100_000)
    bench.fill(3)
    bench.state.ledger.next = 5
    batch = bench.into(1 << 30)
    assert batch is not None
    assert (batch.base, batch.count, bench.state.ledger.next) == (5, 3, 8)
    assert batch.compression == 30 / sum(record.size for record in batch.records)
    assert (batch.deadline, batch.max_timestamp_ms) == (50.0, 1002)
    plain = Sized(10, "none", batch_size=100_000)
    plain.fill(3)
    batch = plain.into(1 << 30)
    assert batch is not None
    assert batch.compression == 1.0


def test_without_an_identity_a_batch_has_no_numbers() -> None:
    bench = Bench(batch_size=100_000)
    bench.state.ledger.identity = None
    bench.fill(3)
    batch = bench.seal()
    assert (batch.base, batch.identity, bench.state.ledger.next) == (0, None, 0)
    (read,) = read_batches(batch.data)
    assert (read.producer_id, read.producer_epoch, read.base_sequence) == (-1, -1, -1)


@pytest.mark.parametrize("name", [None, "x"])
def test_only_batches_of_a_transactional_producer_are_transactional(name: str | None) -> None:
    bench = Bench(batch_size=100_000, transactional_id=name)
    bench.fill(1)
    (read,) = read_batches(bench.seal().data)
    assert read.transactional is (name is not None)


def test_what_compressed_badly_makes_the_next_batch_smaller() -> None:
    """The estimate is of the whole batch: a body of 3,000 bytes for 1,000 is a ratio of about 3."""
    bench = Sized(300, batch_size=2000)
    bench.fill(20, 50)
    first = bench.into(1 << 30)
    assert first is not None
    before = bench.encoded[-1]
    second = bench.into(1 << 30)
    assert second is not None
    assert bench.encoded[-1] <= before
    ratio = bench.sealer._estimator.estimate("t", Codec.GZIP)  # noqa: SLF001
    assert ratio > 2.0
    plain = Sized(300, "none", batch_size=2000)
    plain.fill(20, 50)
    plain.into(1 << 30)
    assert plain.sealer._estimator.estimate("t", Codec.NONE) == 1.0  # noqa: SLF001


# -- drafts


def drafted(count: int, per_record: int) -> Sized:
    """Return a sealer with a draft of all records that wait, of which each has this size."""
    bench = Sized(per_record, batch_size=1_000_000, max_request_size=1_000_000)
    bench.told(1_000_000)
    bench.fill(count, 400_000 // count)
    assert bench.into(1 << 30) is None
    draft = bench.state.queue.draft
    assert draft is not None
    assert bench.encoded == []
    draft.body = bench.sealer.encode(draft.records, Codec.GZIP, None)
    return bench


def test_a_draft_is_sealed_when_its_records_are_compressed() -> None:
    bench = drafted(3, 100)
    draft = bench.state.queue.draft
    assert draft is not None
    body, draft.body = draft.body, None
    assert bench.into(1 << 30) is None
    draft.body = body
    batch = bench.into(_OVERHEAD + 300, alone=False)
    assert batch is not None
    assert (batch.count, bench.waiting, bench.state.queue.draft) == (3, 0, None)


@pytest.mark.parametrize("alone", [True, False])
def test_a_draft_that_does_not_fit_waits_for_a_request_of_its_own(alone: bool) -> None:
    bench = drafted(3, 100)
    batch = bench.into(_OVERHEAD + 299, alone=alone)
    assert (batch is not None) is alone
    assert (bench.state.queue.draft is None) is alone


@pytest.mark.parametrize(
    ("count", "most", "keep"),
    [(4, 399, 3), (4, 400, None), (4, 250, 2), (4, 50, 1), (2, 199, 1), (1, 50, None)],
)
def test_a_draft_that_became_too_large_is_replaced_by_a_shorter_one(
    count: int, most: int, keep: int | None
) -> None:
    """`most` and the header are what the leader takes now."""
    bench = drafted(count, 100)
    before = bench.state.queue.draft
    limit = _OVERHEAD + most
    bench.told(limit)
    batch = bench.into(1 << 30)
    after = bench.state.queue.draft
    assert (batch is None) is (keep is not None)
    if keep is not None:
        assert after is not None
        assert after is not before
        assert after.body is None
        assert len(after.records) in (keep, max(1, keep - 1))
    assert bench.waiting == (count if keep is not None else 0)


def test_a_draft_of_more_records_than_sequences_are_left_is_replaced_by_a_shorter_one() -> None:
    for cap, left in ((4, None), (3, 3), (2, 2)):
        bench = drafted(4, 100)
        bench.state.window.sequence_cap = cap
        batch = bench.into(1 << 30)
        after = bench.state.queue.draft
        assert (None if after is None else len(after.records)) == left
        assert (batch is None) is (left is not None)


# -- parts


def test_a_part_is_as_large_as_a_batch_and_the_topic_may_be() -> None:
    for batch_size, most in ((2, 10), (10, 2)):
        bench = Bench(batch_size=1_000_000)
        bench.fill(6)
        whole = bench.seal()
        one = whole.records[0].size
        other = Bench(batch_size=_OVERHEAD + batch_size * one)
        parts = other.sealer.split(bench.state, whole, _OVERHEAD + most * one)
        assert [part.count for part in parts] == [2, 2, 2]
        assert [part.max_timestamp_ms for part in parts] == [1001, 1003, 1005]
        assert [part.ordinal for part in parts] == [0, 1, 2]
        assert [part.deadline for part in parts] == [50.0, 52.0, 54.0]


def test_a_part_has_room_to_grow_where_it_may_not_be_compressible() -> None:
    """A part is not divided again once it is built, and its refusal could be lost."""
    for codec, largest in (("none", 6), ("gzip", 5)):
        bench = Bench(batch_size=1_000_000, compression_type=codec)
        bench.fill(12)
        whole = bench.seal()
        parts = bench.sealer.split(bench.state, whole, _OVERHEAD + 6 * whole.records[0].size)
        assert max(part.count for part in parts) == largest


@pytest.mark.parametrize(("count", "counts"), [(2, [1, 1]), (3, [1, 2]), (6, [3, 3]), (7, [3, 4])])
def test_a_batch_that_one_part_could_hold_is_halved(count: int, counts: list[int]) -> None:
    bench = Bench(batch_size=1_000_000)
    bench.fill(count)
    parts = bench.sealer.split(bench.state, bench.seal(), 1_000_000)
    assert [part.count for part in parts] == counts


def test_a_split_sets_the_estimate_to_how_badly_it_was_compressed() -> None:
    for codec, expected in (("gzip", 3.0), ("none", 1.0)):
        bench = Sized(360, codec, batch_size=1_000_000)
        bench.fill(20)
        batch = bench.into(1 << 30)
        assert batch is not None
        plain = _OVERHEAD + sum(record.size for record in batch.records)
        batch.data = bytes(3 * plain)
        bench.sealer.split(bench.state, batch, 5000)
        estimate = bench.sealer._estimator.estimate("t", bench.sealer._codec)  # noqa: SLF001
        assert estimate == expected


def test_a_refused_record_is_left_out_of_its_batch() -> None:
    bench = Bench(batch_size=1_000_000)
    bench.fill(4)
    batch = bench.seal()
    left = bench.sealer.without(batch, {1, 3})
    assert left is not None
    assert list(left.records) == [batch.records[0], batch.records[2]]
    assert (left.base, left.ordinal, left.identity) == (batch.base, batch.ordinal, batch.identity)
    assert (left.max_timestamp_ms, left.deadline, left.data) == (1002, 50.0, b"")
    assert bench.sealer.without(batch, range(4)) is None
