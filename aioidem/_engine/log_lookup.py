"""LogLookup: what follows from reading a partition's log for its batches in doubt.

`ReadBack` reads the log page by page, where a resend could be a duplicate. A batch that is found is
acknowledged. The batches that are not found end UNKNOWN, and so do all if the log cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence

from aioidem import errors
from aioidem._engine.acknowledgements import Acknowledgements
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.log_position import LogPosition
from aioidem._engine.read_back import ReadBack, WrittenBatch
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.unresolved import UnresolvedBatches

__all__ = ["LogLookup"]


class LogLookup:
    """Looks for the batches in doubt of one partition in its log.

    Args:
        where: the partition's name in messages.
        batches: its batches without an outcome.
        log: how far its log is known to reach.
        read_back: the reading of the log.
        suspicion: whether the leader may have forgotten the producer.
        setbacks: when the log may be read again after a failure.
        acknowledgements: judges what a batch in the log says about earlier ones.
        endings: ends the batches.
    """

    __slots__ = (
        "_acknowledgements",
        "_batches",
        "_endings",
        "_log",
        "_read_back",
        "_setbacks",
        "_suspicion",
        "_where",
    )

    def __init__(
        self,
        where: str,
        *,
        batches: UnresolvedBatches,
        log: LogPosition,
        read_back: ReadBack,
        suspicion: Suspicion,
        setbacks: Setbacks,
        acknowledgements: Acknowledgements,
        endings: Endings,
    ) -> None:
        self._where = where
        self._batches = batches
        self._log = log
        self._read_back = read_back
        self._suspicion = suspicion
        self._setbacks = setbacks
        self._acknowledgements = acknowledgements
        self._endings = endings

    @property
    def wanted(self) -> bool:
        """Whether the log must be read to resolve doubt, because a resend could be a duplicate."""
        return (
            self._suspicion.forbids_resend
            and not self._batches.outstanding
            and self._read_back.offset is None
            and bool(self._batches.doubts())
        )

    def begin(self) -> int | None:
        """Begin to read the log where the first batch in doubt may be.

        It lies after all records that were known to be stored when it was first sent. Batches that
        were acknowledged since may lie after it.

        Returns:
            The first offset to read; None if no acknowledged offset is known.
        """
        known = self._log.offset
        for batch in self._batches.doubts():
            if batch.first_attempt is not None:
                stored = batch.first_attempt.after
                if stored is not None and stored[0] < known:
                    known = stored[0]
        return self._read_back.begin(known)

    def take_page(
        self, page: Sequence[WrittenBatch], high_watermark: int, out: Effects
    ) -> int | None:
        """Handle a page of the log, and return the offset of the next page; None after the last.

        A batch in doubt that is found in the log is acknowledged. After the last page the batches
        not found end UNKNOWN, because their absence proves nothing.
        """
        doubtful = self._batches.doubts()
        found = self._read_back.found(page, doubtful)
        for batch, written in found:
            below = self._batches.unresolved[: self._batches.unresolved.index(batch)]
            self._suspicion.found(batch.max_timestamp_ms)
            self._endings.settle_ack(batch, written.base_offset, out, None, written)
            self._acknowledgements.was_accepted_over_a_hole(batch, below, out)
        following = self._read_back.following(page, high_watermark)
        if following is None or len(found) == len(doubtful):
            self.give_up_doubt(out)
            return None
        return following

    def end(self, retry_at: float | None = None) -> None:
        """Stop reading the log for a reason that may pass; the reading may begin again later.

        Args:
            retry_at: the earliest time at which the reading may begin again, in seconds; None: at
            once.
        """
        self._read_back.end()
        if retry_at is not None:
            self._setbacks.wait_until(retry_at)

    def give_up_doubt(self, out: Effects) -> None:
        """End the batches in doubt as UNKNOWN: neither a resend nor the log can resolve them.

        Such a batch may be in the log, and a leader that had forgotten the producer took it without
        the batches before it. So refused batches before it end as NOT_WRITTEN: sent again, they
        would come after it.
        """
        self._read_back.end()
        doubtful = self._batches.doubts()
        if not doubtful:
            return
        below = self._batches.unresolved[: self._batches.unresolved.index(doubtful[-1])]
        refused = [batch for batch in below if batch.due and not batch.in_doubt]
        self._endings.fail_overtaken(refused, "was not appended, and a later one may be", out)
        for batch in doubtful:
            error = errors.UnknownProducerId(
                f"{self._where}: the brokers may have forgotten this producer (KIP-854), so the "
                "batch is not resent; it was not found in the log, or the log could not be read"
            )
            self._endings.give_up(batch, error, out)
