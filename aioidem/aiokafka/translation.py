"""What results and errors become on their way out of the drop-in: a seam for faces on the face.

Invariant: everything the drop-in raises or resolves a future with has passed through here once.
"""

from __future__ import annotations

from types import TracebackType

from aioidem.errors import KafkaError
from aioidem.structs import RecordMetadata

__all__ = ["OWN", "Translation"]


class Translation:
    """Leaves all as it is. As a context manager it translates what its body raises.

    It has no state, so one instance serves everyone, and a future that waits for its outcome keeps
    no producer alive.
    """

    __slots__ = ()

    def error(self, error: KafkaError) -> Exception:
        """The exception to raise for one of aioidem's."""
        return error

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


OWN = Translation()
