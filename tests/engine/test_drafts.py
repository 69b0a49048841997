"""Drafts: batches that are compressed outside of the engine, and sealed when that is done."""

from __future__ import annotations

import random
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine.steps import Compress
from aioidem._records import Codec, build_body, quick_bytes

from .driver import (
    ACKED,
    INVALID_PRODUCER_EPOCH,
    INVALID_RECORD,
    MESSAGE_TOO_LARGE,
    NOT_WRITTEN,
    PENDING,
    Rig,
    T,
    topic_id,
)

LARGE: dict[str, Any] = {
    "compression_type": "gzip",
    "batch_size": 100_000,
    "max_request_size": 200_000,
}


def rig(*, partitions: int = 1, **options: Any) -> Rig:
    """Return a started rig that holds back every compression, until the test reports it."""
    made = Rig(partitions=partitions, **(LARGE | options)).start()
    made.hold = (Compress,)
    made.core.accumulator.drafts.quick = 3000
    return made


def drafts(rig: Rig) -> list[Compress]:
    """Return the compressions begun so far and not yet reported."""
    return [step for step in rig.held if isinstance(step, Compress)]


def report(rig: Rig, step: Compress | None = None) -> None:
    """Carry out a compression, by default the oldest, and report its result to the engine."""
    step = drafts(rig)[0] if step is None else step
    rig.held.remove(step)
    rig.compressed(step)
    rig.poll()


def sent(rig: Rig, partition: int = 0) -> list[int]:
    """Return the numbers of the records sent to a partition so far, in order."""
    parts = [part for request in rig.everything for part in request.parts]
    return [
        int((value or b"")[:8])
        for part in parts
        if part.partition == partition
        for value in part.values
    ]


def finish(rig: Rig) -> None:
    """Report every compression and acknowledge every batch, until nothing is left."""
    for _ in range(1000):
        rig.poll()
        if not rig.held and not rig.outstanding():
            break
        while rig.held:
            report(rig)
        for request in rig.outstanding():
            rig.ack(request)
    rig.assert_drained()


def test_a_poll_compresses_no_large_batch() -> None:
    """A large batch is sent after the driver has compressed it; a small batch is sent at once."""
    made = rig()
    made.send()
    assert sent(made) == [0]
    made.ack_all()
    made.send(40)
    assert sent(made) == [0]
    [step] = drafts(made)
    assert (step.codec, step.level) == (Codec.GZIP, None)
    report(made)
    assert sent(made) == list(range(41))
    finish(made)
    assert made.statuses == [ACKED] * 41


def test_without_compression_no_batch_waits() -> None:
    made = rig(compression_type="none")
    made.send(400)
    assert sent(made) == list(range(400))
    assert drafts(made) == []


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd", "snappy"])
def test_what_compresses_quickly_is_compressed_in_the_poll(codec: str) -> None:
    """A batch becomes a draft only if it has more bytes than its codec's `quick_bytes`."""
    made = Rig(**(LARGE | {"compression_type": codec, "batch_size": 1_000_000})).start()
    quick = quick_bytes(Codec.from_name(codec), None)
    assert made.core.accumulator.drafts.quick == quick
    made.hold = (Compress,)
    made.send(size=int(quick) - 1000)
    assert drafts(made) == []
    made.ack_all()
    made.send(size=int(quick) + 1000)
    assert len(drafts(made)) == 1


def test_one_large_record_is_compressed_as_a_draft_whatever_batch_size_is() -> None:
    made = rig(batch_size=200)
    made.send(size=5000)
    assert sent(made) == []
    report(made)
    assert sent(made) == [0]


def test_records_queued_behind_a_draft_stay_behind_it() -> None:
    """While a draft is compressed, no record of its partition overtakes it, however small."""
    made = rig()
    made.send(40)
    made.send()
    made.send(40)
    assert sent(made) == []
    assert len(drafts(made)) == 1
    finish(made)
    assert sent(made) == list(range(81))
    assert made.statuses == [ACKED] * 81


def test_partitions_keep_their_order_in_whatever_order_drafts_end() -> None:
    """A draft that ends early is sent early; each partition's records stay in call order."""
    made = rig(partitions=3)
    made.core.accumulator.drafts.at_once = 10
    source = random.Random(5)
    for _ in range(30):
        for partition in range(3):
            made.send(source.randint(1, 40), partition=partition, poll=False)
        made.poll()
        if drafts(made):
            report(made, source.choice(drafts(made)))
        if made.outstanding() and source.random() < 0.5:
            made.ack(made.outstanding()[0])
    finish(made)
    numbers = [number for partition in range(3) for number in sent(made, partition)]
    assert sorted(numbers) == list(range(len(made.outcomes)))
    for partition in range(3):
        assert sent(made, partition) == sorted(sent(made, partition))


def test_only_so_many_drafts_are_compressed_at_once() -> None:
    """While `at_once` drafts (here two) are being compressed, other partitions wait their turn."""
    made = rig(partitions=4)
    made.core.accumulator.drafts.at_once = 2
    for partition in range(4):
        made.send(40, partition=partition, poll=False)
    made.poll()
    assert len(drafts(made)) == 2
    report(made)
    assert len(drafts(made)) == 2
    finish(made)
    assert made.statuses == [ACKED] * 160


def test_batches_are_compressed_while_their_connection_admits_no_request() -> None:
    """Batches are compressed while the connection takes no request, and then share the next one."""
    made = rig(partitions=6, max_in_flight_requests_per_connection=1)
    made.core.accumulator.drafts.at_once = 10
    for partition in range(6):
        made.send(partition=partition)
        made.ack_all()
    made.send(partition=5)
    for partition in range(5):
        made.send(40, partition=partition)
    assert len(drafts(made)) == 5
    while made.held:
        report(made)
    made.ack(made.outstanding()[0])
    assert len(made.outstanding()[0].parts) == 5
    finish(made)


def test_no_batch_is_compressed_while_the_window_of_its_partition_is_full() -> None:
    """No batch is compressed while its partition's window is full, because it may still grow."""
    made = rig(max_in_flight_requests_per_connection=5)
    made.send()
    made.ack_all()
    for _ in range(5):
        made.send()
    assert len(made.outstanding()) == 5
    made.send(40)
    assert drafts(made) == []
    finish(made)


def test_a_draft_is_numbered_when_it_is_sent() -> None:
    """A draft gets producer id, epoch and sequence only when it is sent, not when it is made."""
    made = rig()
    made.send()
    made.ack_all()
    made.send()
    made.send(40)
    assert made.sequences == [1]
    before = made.outstanding()[0]
    # This error shows that another client uses the producer id, so the engine requests a new id.
    made.fail(before, INVALID_PRODUCER_EPOCH)
    made.tick(1.0)
    again = made.outstanding()[0].only
    report(made)
    assert sent(made) == [0, 1, 1], "the new identity allows one batch until it is acknowledged"
    made.ack(made.outstanding()[0])
    assert sent(made)[-40:] == list(range(2, 42))
    last = made.outstanding()[-1].only
    assert last.identity == again.identity != before.only.identity
    assert (again.sequence, last.sequence) == (0, 1)
    finish(made)


@pytest.mark.parametrize("error", [None, errors.RecordError("late")])
def test_records_expire_while_they_are_compressed(error: errors.KafkaError | None) -> None:
    """They end NOT_WRITTEN at their deadline; the late result is ignored, later ones are sent."""
    made = rig(delivery_timeout=60.0)
    made.send(40)
    made.tick(59.0)
    assert made.statuses == [PENDING] * 40
    made.tick(2.0)
    assert made.statuses == [NOT_WRITTEN] * 40
    made.send(40)
    late, current = drafts(made)
    if error is None:
        report(made, late)
    else:
        made.held.remove(late)
        made.core.on_compressed(late.token, error)
    made.poll()
    assert sent(made) == []
    report(made, current)
    assert sent(made) == list(range(40, 80))
    finish(made)


def test_if_only_some_records_of_a_draft_expire_the_others_are_compressed_again() -> None:
    made = rig(delivery_timeout=60.0, linger=10.0)
    made.send(20)
    made.tick(5.0)
    made.send(20)
    made.tick(6.0)
    made.tick(50.0)
    assert made.statuses == [NOT_WRITTEN] * 20 + [PENDING] * 20
    assert len(drafts(made)) == 2
    finish(made)
    assert sent(made) == list(range(20, 40))
    assert made.statuses[20:] == [ACKED] * 20


def test_an_error_of_the_compression_is_that_of_its_records_alone() -> None:
    """The records of the draft end NOT_WRITTEN with the error; those behind them are sent."""
    made = rig()
    made.send(40)
    made.send(2)
    [step] = drafts(made)
    made.core.on_compressed(step.token, errors.UnsupportedCodecError("no such library"))
    made.held.clear()
    made.poll()
    assert made.statuses == [NOT_WRITTEN] * 40 + [PENDING] * 2
    assert isinstance(made.outcomes[0].error, errors.UnsupportedCodecError)
    assert sent(made) == [40, 41]
    finish(made)


def test_a_flush_waits_for_drafts() -> None:
    made = rig(linger=1000.0, delivery_timeout=2000.0)
    made.send(40)
    assert drafts(made) == []
    generation = made.core.accumulator.begin_flush()
    made.poll()
    made.send(40)
    assert not made.core.outcomes.flushed(generation)
    report(made)
    assert sent(made) == list(range(40)), "records behind the flush linger"
    made.ack_all()
    assert made.core.outcomes.flushed(generation)


def test_the_records_of_a_draft_keep_their_memory() -> None:
    made = rig()
    made.send(40)
    used = made.core.budget.used
    assert used > 40 * 150
    report(made)
    assert made.core.budget.used == used
    made.ack_all()
    assert made.core.budget.used == 0


@pytest.mark.parametrize("how", ["close", "fatal"])
def test_the_end_of_the_producer_settles_drafts(how: str) -> None:
    made = rig()
    made.send(40)
    [step] = drafts(made)
    if how == "close":
        made.core.close(made.now)
        made.collect()
    else:
        made.core.fatal(errors.KafkaError("the end"))
        made.poll()
    assert made.statuses == [NOT_WRITTEN] * 40
    made.compressed(step)
    made.collect()
    assert sent(made) == []
    assert made.core.unsettled == made.core.budget.used == 0


def test_an_abort_ends_drafts_and_a_commit_waits_for_them() -> None:
    made = Rig(transaction_version=2, transactional_id="x", **LARGE).start()
    made.core.accumulator.drafts.quick = 3000
    made.begin()
    made.hold = (Compress,)
    made.send(40)
    made.abort()
    assert made.statuses == [NOT_WRITTEN] * 40
    made.tick(1.0)
    made.begin()
    made.send(40)
    late, _ = drafts(made)
    report(made, late)
    assert sent(made) == []
    end = made.commit()
    made.tick(1.0)
    assert not end.committed
    report(made)
    assert sent(made) == list(range(40, 80))
    made.ack_all()
    made.tick(1.0)
    assert [end.committed] == [True]
    assert made.statuses[40:] == [ACKED] * 40


@pytest.mark.parametrize("partitions", [2, 1])
def test_a_recreated_topic_gets_the_records_of_drafts(partitions: int) -> None:
    """A draft's records go to the recreated topic, and its bytes for the old topic are ignored."""
    made = rig(partitions=2)
    made.send(40, partition=0)
    late = drafts(made)[0]
    made.leaders = {(T, index): (1, 0) for index in range(partitions)}
    made.ids[T] = topic_id(T, 1)
    made.refresh()
    report(made, late)
    assert sent(made) == []
    finish(made)
    assert sent(made) == list(range(40))
    assert made.statuses == [ACKED] * 40


def wrong_estimate(made: Rig) -> None:
    """Let the estimator learn from well compressible batches that it may make large ones."""
    first = len(made.everything)
    for _ in range(150):
        made.send(400)
        while made.held:
            report(made)
        made.ack_all()
    finish(made)
    counts = [len(request.only.values) for request in made.everything[first:]]
    assert max(counts) > 2 * counts[0], "drafts fill up as the ratio is learned"


def test_a_draft_that_became_too_large_is_cut_again() -> None:
    """No batch is larger than the leader accepts, however wrong the estimate; the order stays."""
    made = rig(batch_size=8000, max_request_size=8000)
    wrong_estimate(made)
    source, before = random.Random(1), len(made.everything)
    values = [source.randbytes(100) for _ in range(300)]
    for value in values:
        made.send(value=value, poll=False)
    finish(made)
    parts = [part for request in made.everything[before:] for part in request.parts]
    assert [value for part in parts for value in part.values] == values
    assert 7000 < max(len(part.data) for part in parts) <= 8000


def test_a_draft_waits_for_a_request_with_room_for_it() -> None:
    """A draft (compressed batch) that has no room in a request goes unchanged into a later one."""
    made = rig(partitions=2, late_sealing=True, batch_size=1000, max_request_size=20_000)
    made.topic_limit = 1 << 20
    source = random.Random(1)
    # From these answers the engine learns the topic's size limit and the connection's goodput
    # (acknowledged bytes per second). With late sealing both decide how large a batch may become.
    for partition in (0, 1) * 10:
        made.send(10, partition=partition)
        made.now += 0.01
        made.ack_all()
    for partition in (0, 1):
        for _ in range(80):
            made.send(value=source.randbytes(130), partition=partition, poll=False)
        made.state(T, partition).queue.blocked = True
    before = len(made.everything)
    made.poll()
    first, second = drafts(made)
    made.held.clear()
    made.compressed(first)
    made.compressed(second)
    made.poll()
    sizes = [len(part.data) for request in made.everything[before:] for part in request.parts]
    assert len(sizes) == 2
    assert sum(sizes) > 20_000
    assert min(sizes) > 10_000
    assert [len(request.parts) for request in made.everything[before:]] == [1, 1]
    assert made.held == []
    finish(made)


def test_a_draft_has_no_more_records_than_the_range_that_the_broker_deduplicates() -> None:
    """A draft with more records than the broker deduplicates (KIP-758) is cut and compressed anew.

    The limit may become known only while the draft (the records of a batch) is being compressed.
    """
    made = rig(broker_dedup="range")
    made.send(40)
    made.state().window.limit_records(10)
    report(made)
    assert sent(made) == []
    report(made)
    assert sent(made) == list(range(10))
    finish(made)
    assert sent(made) == list(range(40))


def test_a_draft_does_not_let_the_batch_behind_it_grow() -> None:
    """The next batch keeps to `batch_size` while a draft is being compressed.

    A batch may exceed `batch_size` only if it waits because too many batches are in flight.
    """
    made = rig(late_sealing=True)
    made.send()
    made.ack_all()
    made.send(40)
    made.poll()
    assert len(drafts(made)) == 1
    assert not made.state().queue.blocked


def test_a_step_to_compress_does_not_show_its_records() -> None:
    made = rig()
    made.send(40)
    assert "SinkRecord" not in repr(drafts(made)[0])


def test_a_body_does_not_depend_on_who_sends_it() -> None:
    """A sent batch ends with exactly the bytes that `build_body` made of its records."""
    made = rig()
    made.send(40)
    [step] = drafts(made)
    body = build_body(step.records, step.codec, step.level)
    report(made)
    assert made.outstanding()[0].only.data.endswith(body.data)
    assert len(made.outstanding()[0].only.data) == body.batch_size


def refused(made: Rig) -> None:
    """Let the leader refuse a batch of 80 records as too large; its parts are made as drafts."""
    source = random.Random(2)
    for _ in range(80):
        made.send(value=b"%08d" % len(made.outcomes) + source.randbytes(142), poll=False)
    made.poll()
    report(made)
    made.fail(made.outstanding()[0], MESSAGE_TOO_LARGE)
    made.tick(1.0)


@pytest.mark.parametrize("delay", [False, True])
def test_the_parts_of_a_refused_batch_are_compressed_as_drafts(*, delay: bool) -> None:
    """Large parts of a batch refused as too large are compressed as drafts, and sent in order.

    A draft is compressed outside of the engine. The parts keep the sequences of the whole.
    """
    made = rig(batch_size=20_000)
    made.send()
    made.ack_all()
    refused(made)
    assert made.outstanding() == []
    assert len(drafts(made)) == 1
    made.send(10)
    if delay:
        made.tick(5.0)
    before = len(made.everything)
    finish(made)
    parts = [part for request in made.everything[before:] for part in request.parts]
    assert [part.sequence for part in parts] == sorted(part.sequence for part in parts)
    assert parts[0].sequence == 1
    assert sent(made)[-90:] == list(range(1, 91))
    assert made.statuses == [ACKED] * 91


def test_small_parts_of_a_refused_batch_are_compressed_when_they_are_sent() -> None:
    made = rig(batch_size=20_000)
    made.core.accumulator.drafts.quick = 8000
    refused(made)
    assert drafts(made) == []
    assert len(sent(made)) > 80
    finish(made)
    assert made.statuses == [ACKED] * 80


@pytest.mark.parametrize("error", [None, errors.RecordError("late")])
def test_a_part_expires_while_it_is_compressed(error: errors.KafkaError | None) -> None:
    """If records expire while a thread compresses them, they end NOT_WRITTEN.

    The compressed batch, or the thread's error, is ignored when it comes. The records are a part of
    a batch that was refused as too large, and therefore split.
    """
    made = rig(batch_size=20_000, delivery_timeout=60.0)
    refused(made)
    [late] = drafts(made)
    made.tick(61.0)
    assert made.statuses == [NOT_WRITTEN] * 80
    made.send(40)
    made.held.remove(late)
    if error is None:
        made.compressed(late)
    else:
        made.core.on_compressed(late.token, error)
    made.tick(1.0)
    finish(made)
    assert sent(made)[-40:] == list(range(80, 120))
    assert made.statuses[80:] == [ACKED] * 40


def test_an_error_of_the_compression_of_a_part_is_that_of_the_part_alone() -> None:
    """If a part of a divided batch fails to compress, only that part's records end NOT_WRITTEN.

    The other parts of the batch are sent under the next epoch.
    """
    made = rig(batch_size=20_000)
    refused(made)
    epoch = made.everything[-1].epoch
    [step] = drafts(made)
    made.held.clear()
    made.core.on_compressed(step.token, errors.InternalError("no room"))
    count = len(step.records)
    made.tick(1.0)
    finish(made)
    assert made.statuses == [NOT_WRITTEN] * count + [ACKED] * (80 - count)
    assert made.everything[-1].epoch == epoch + 1


def test_a_part_is_renumbered_while_it_is_compressed() -> None:
    """A part of a split batch gets its epoch and sequence only when it is sent.

    Here the epoch rises while the part is being compressed.
    """
    made = rig(partitions=2, batch_size=20_000)
    refused(made)
    made.send(partition=1)
    epoch = made.outstanding()[0].epoch
    made.fail(made.outstanding()[0], INVALID_RECORD)  # its numbers are given up: the epoch rises
    made.tick(1.0)
    finish(made)
    assert made.everything[-1].epoch == epoch + 1
    assert sent(made)[-80:] == list(range(80))
    assert made.statuses == [ACKED] * 80 + [NOT_WRITTEN]


def test_what_is_left_of_a_batch_with_refused_records_is_compressed_as_a_draft() -> None:
    """Records that the leader names fail (KIP-467); the others are compressed outside of a poll."""
    made = rig()
    made.send(80)
    report(made)
    made.fail(made.outstanding()[0], INVALID_RECORD, record_errors=((3, "bad"),))
    made.tick(1.0)
    assert made.statuses[3] is NOT_WRITTEN
    assert len(drafts(made)) == 1
    finish(made)
    assert sent(made)[-79:] == [number for number in range(80) if number != 3]
    assert made.statuses == [ACKED] * 3 + [NOT_WRITTEN] + [ACKED] * 76
