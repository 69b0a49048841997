"""What results and errors become on their way out of the drop-in: a seam for faces on the face.

Invariant: everything the drop-in raises or resolves a future with has passed through here once.

Of a transaction that can only be aborted aiokafka raises the reason itself, and of an epoch that is
too old it says ProducerFenced: except clauses for these go on working.
"""

from __future__ import annotations

import copy
from types import TracebackType

from aioidem.errors import (
    AbortableTransactionError,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
)
from aioidem.structs import RecordMetadata

__all__ = ["OWN", "Translation", "reason_of"]


class Translation:
    """aioidem's own names. As a context manager it translates what its body raises.

    It has no state, so one instance serves everyone, and a future that waits for its outcome keeps
    no producer alive.
    """

    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        """The exception to raise for one of aioidem's."""
        return reason_of(error)

    def metadata(self, metadata: RecordMetadata) -> RecordMetadata:
        """The result to give for a record that was sent."""
        return metadata

    def __enter__(self) -> None:
        """Enter the body whose errors are translated."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc, KafkaError):
            other = self.error(exc)
            if other is not exc:
                raise other from exc


def reason_of(error: KafkaError) -> KafkaError:
    """What aiokafka would name: see above."""
    reason = error.__cause__
    if isinstance(error, AbortableTransactionError) and isinstance(reason, KafkaError):
        reason = copy.copy(reason)
        reason.status = error.status
        error = reason
    if isinstance(error, InvalidProducerEpoch):
        fenced = ProducerFenced(*error.args, status=error.status)
        fenced.__cause__ = error
        return fenced
    return error


OWN = Translation()
