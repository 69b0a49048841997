"""ReadBack: looks for batches in doubt in the log, when resending them could write duplicates.

A leader that may have forgotten the producer (KIP-854) would append a copy of a batch in doubt a
second time. Therefore batches in doubt are not resent to that leader, but looked for in its log,
from the last acknowledged offset on. A batch that is found is acknowledged. A batch that is not
found ends UNKNOWN, because its absence proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from aioidem._engine.batch import Batch
from aioidem._records import read_batches

__all__ = ["ReadBack", "WrittenBatch", "written_batches"]


class WrittenBatch(NamedTuple):
    """The position, producer id, epoch and base sequence of a committed batch in the log.

    `log_append_time_ms` is when the broker appended it, in milliseconds since the epoch; -1 on a
    topic with CreateTime.
    """

    base_offset: int
    next_offset: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    log_append_time_ms: int = -1

    @property
    def identity(self) -> tuple[int, int, int]:
        """The producer id, epoch and base sequence, by which a batch is found."""
        return self.producer_id, self.producer_epoch, self.base_sequence


def written_batches(page: bytes) -> list[WrittenBatch]:
    """Read the complete batches of a page, in order; a page may end in the middle of a batch.

    Raises:
        ProtocolError: a batch is malformed.
    """
    return [
        WrittenBatch(
            batch.base_offset,
            batch.base_offset + batch.last_offset_delta + 1,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            max(batch.max_timestamp_ms, -1) if batch.log_append else -1,
        )
        for batch in read_batches(page, partial=True)
    ]


class ReadBack:
    """The reading of one partition's log, page by page."""

    __slots__ = ("_awaited", "_behind_since", "offset")

    def __init__(self) -> None:
        # The offset at which the next page starts; None while the log is not being read.
        self.offset: int | None = None
        # The token of the request for that page; None while it is not requested.
        self._awaited: int | None = None
        # Since when the leader has named no high watermark above what was acknowledged, in seconds;
        # None if it has.
        self._behind_since: float | None = None

    def begin(self, acked_offset: int) -> int | None:
        """Begin to read after an acknowledged offset.

        Args:
            acked_offset: that offset; -1 if none was acknowledged.

        Returns:
            The first offset to read; None if no offset was acknowledged.
        """
        self.offset = acked_offset + 1 if acked_offset >= 0 else None
        return self.offset

    def asked(self, token: int) -> None:
        """Note that the next page was requested; `token` is that of the request."""
        self._awaited = token

    def takes(self, token: int) -> bool:
        """Return whether a request is the one for the next page, and await it no longer.

        It is not if the reading has ended or begun anew since, for instance at another leader.
        """
        awaited = self._awaited == token
        if awaited:
            self._awaited = None
        return awaited

    def is_behind(self, high_watermark: int, acked: int, now: float, patience: float) -> bool:
        """Return whether the leader does not know yet that what was acknowledged is committed.

        A leader that was just elected hears from its followers how far its log is committed. One
        that still does not know it some time later has lost what was acknowledged, by an unclean
        election for instance.

        Args:
            high_watermark: what the leader has named as the end of the committed log.
            acked: the last acknowledged offset.
            now: seconds.
            patience: for how long a leader may be behind, in seconds.
        """
        if high_watermark > acked:
            self._behind_since = None
            return False
        if self._behind_since is None:
            self._behind_since = now
        return now < self._behind_since + patience

    def owed(self, high_watermark: int) -> int | None:
        """Return the offset of an empty page if the committed log has something there."""
        return self.offset if self.offset is not None and self.offset < high_watermark else None

    def end(self) -> None:
        """Stop reading: all pages are read, a request failed, or the partition's route changed."""
        self.offset = self._awaited = self._behind_since = None

    def found(
        self, page: Iterable[WrittenBatch], doubtful: Iterable[Batch]
    ) -> list[tuple[Batch, WrittenBatch]]:
        """Return the batches in doubt that are in this page, in the order of the log."""
        wanted = {
            (b.identity.producer_id, b.identity.epoch, b.wire_base): b
            for b in doubtful
            if b.identity is not None
        }
        matched = ((wanted.pop(written.identity, None), written) for written in page)
        return [(batch, written) for batch, written in matched if batch is not None]

    def following(self, page: Sequence[WrittenBatch], high_watermark: int) -> int | None:
        """Return the offset of the page that follows the given page; None after the last page."""
        ends = not page or page[-1].next_offset >= high_watermark
        self.offset = None if ends else page[-1].next_offset
        return self.offset
