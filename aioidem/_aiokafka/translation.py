"""Translation: how the native producer's results and errors leave the drop-in.

`aioidem.integrations.aiokafka` has a subclass that makes aiokafka's own types. Invariant: whatever
the drop-in raises or resolves a future with has passed through a translation once.

For a transaction that can only be aborted aiokafka raises the reason itself, and for an epoch that
is too old ProducerFenced. The drop-in does the same, so that ``except`` clauses keep working.
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
    """The translation to aioidem's own types; as a context manager it translates exceptions.

    It has no state, so one instance serves all producers, and a pending future that holds it keeps
    no producer alive.
    """

    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        """Return the exception to raise for one of the native producer's."""
        return reason_of(error)

    def metadata(self, metadata: RecordMetadata) -> RecordMetadata:
        """Return the result to give for a record's metadata."""
        return metadata

    def __enter__(self) -> None:
        """Enter the block whose exceptions are translated."""

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
    """Return the error that aiokafka would raise; see the module's docstring."""
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
