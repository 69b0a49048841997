"""A flight record keeps of a log that was read back what the engine looks at, and nothing else."""

from __future__ import annotations

from aioidem._engine.read_back import WrittenBatch, written_batches
from aioidem._flight import plain
from aioidem._flight.read_back import page_of, shortened
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._records import ReadRecord, assign_offsets, build_batch

NOW = 1_700_000_000_000


def test_the_engine_sees_the_same_batches_in_a_page_of_a_replay() -> None:
    """Batches on a topic with CreateTime, and with LogAppendTime, are where and when they were."""
    records = [ReadRecord(n, NOW, None, b"secret", ()) for n in range(3)]
    made = build_batch(records, producer_id=7, producer_epoch=2, base_sequence=5).data
    page = b"".join(
        assign_offsets(made, base_offset=offset, leader_epoch=4, log_append_time_ms=appended)
        for offset, appended in ((40, None), (43, NOW + 9))
    )
    kept = plain.Writer().value(shortened(ReadBackAnswer(0, 46, page)))
    assert "secret" not in str(kept)
    _, _, _, batches, _ = plain.Reader().value(kept)
    assert batches == (
        WrittenBatch(40, 43, 7, 2, 5),
        WrittenBatch(43, 46, 7, 2, 5, log_append_time_ms=NOW + 9),
    )
    assert tuple(written_batches(page_of(batches))) == batches


def test_a_file_from_before_append_times_were_kept_can_be_read() -> None:
    """A field with a default may be missing at the end of a named tuple."""
    kept = plain.Writer().value(WrittenBatch(40, 43, 7, 2, 5))
    assert kept.pop() == -1
    assert plain.Reader().value(kept) == WrittenBatch(40, 43, 7, 2, 5)
