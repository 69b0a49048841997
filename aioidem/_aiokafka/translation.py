"""Translation: turns the native producer's results and errors into those of the drop-in.

Where a transaction can only be aborted, aiokafka raises the error that caused this, and where the
producer's epoch is too old it raises ProducerFenced. The drop-in does the same, so that ``except``
clauses keep working. `aioidem.integrations.aiokafka` has a subclass that also makes aiokafka's own
types.

Invariant: every error that the drop-in raises, and every result and error of a future, has passed
through a translation once.
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

    A translation has no state, so all producers share one instance, and a pending future that
    refers to it keeps no producer alive.
    """

    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        """Return the exception that the drop-in raises for one of the native producer."""
        return reason_of(error)

    def metadata(self, metadata: RecordMetadata) -> RecordMetadata:
        """Return the result that the drop-in gives for a record's metadata."""
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
