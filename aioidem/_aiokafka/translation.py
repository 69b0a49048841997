"""Translation: turns results and errors of `aioidem.Producer` into those that aiokafka has.

If a transaction can only be aborted, aiokafka raises the error that caused this; if the producer's
epoch is too old, aiokafka raises ProducerFenced. The drop-in does the same, so that ``except``
clauses keep working. The results and errors are of aioidem's classes; a subclass of `Translation`
in `aioidem.integrations.aiokafka` replaces them by aiokafka's own classes.

Invariant: every error that the drop-in raises, and every result and error of a future, has passed
through a translation once.
"""

from __future__ import annotations

import copy
from types import TracebackType
from typing import NoReturn

from aioidem.errors import (
    AbortableTransactionError,
    InvalidProducerEpoch,
    KafkaError,
    ProducerFenced,
)
from aioidem.structs import RecordMetadata

__all__ = ["OWN", "Translation", "reason_of"]


class Translation:
    """Translates what `aioidem.Producer` returns and raises into what aiokafka's producer does.

    For example, an error that aborts a transaction becomes the error that caused it (`reason_of`).
    The objects are of aioidem's classes; a subclass of this class, in
    `aioidem.integrations.aiokafka`, makes objects of aiokafka's classes. As a context manager a
    translation translates the exceptions of the block.

    A translation has no state: all producers share one instance, and a pending future, which needs
    the translation, does not keep its producer alive.
    """

    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        """Return the exception that the drop-in raises for ``error`` of `aioidem.Producer`."""
        return reason_of(error)

    def metadata(self, metadata: RecordMetadata) -> RecordMetadata:
        """Return a record's metadata as the drop-in's future gives it: here, unchanged."""
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

    def reraise(self, error: KafkaError) -> NoReturn:
        """Raise the translation of an error that was caught.

        Raises:
            Exception: Always: the translation, with the given error as its cause; or the given
                error itself if it needs no translation.
        """
        other = self.error(error)
        if other is error:
            raise error
        raise other from error


def reason_of(error: KafkaError) -> KafkaError:
    """Return the error that aiokafka would raise in the same case.

    For an `AbortableTransactionError` that is its cause, for an `InvalidProducerEpoch` it is a
    `ProducerFenced`.
    """
    reason = error.__cause__
    if isinstance(error, AbortableTransactionError) and isinstance(reason, KafkaError):
        reason = copy.copy(reason)
        reason.status = error.status
        reason.incident = error.incident
        error = reason
    if isinstance(error, InvalidProducerEpoch):
        fenced = ProducerFenced(*error.args, status=error.status)
        fenced.incident = error.incident
        fenced.__cause__ = error
        return fenced
    return error


OWN = Translation()
