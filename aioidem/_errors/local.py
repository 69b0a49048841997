"""The base class of all errors, and the errors that are raised without a broker's error code.

Invariants:

- An exception that is a record's outcome carries ``status``: NOT_WRITTEN (the record is not in the
  log) or UNKNOWN (it may be).
- Every error can be copied and pickled with its attributes: a batch's error is copied for each of
  its records, and load tests send errors between processes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from aioidem.structs import DeliveryStatus, RecordMetadata

if TYPE_CHECKING:
    from aioidem.incident import Incident

__all__ = [
    "AbortableTransactionError",
    "AuthenticationFailedError",
    "BrokerNotAllowedError",
    "BufferFullError",
    "ClusterChangedError",
    "ConfigError",
    "DeliveryTimeoutError",
    "FlightRecordError",
    "ForkedProducerError",
    "IllegalOperation",
    "IllegalStateError",
    "IncompatibleBrokerVersion",
    "InternalError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaTimeoutError",
    "NotKafkaError",
    "PartialDeliveryError",
    "ProducerClosed",
    "ProtocolError",
    "RecordError",
    "RecordOutcome",
    "SslAuthenticationError",
    "TransactionAborted",
    "UnsupportedCodecError",
    "WrongLoopError",
]


class KafkaError(RuntimeError):
    """The base class of all errors of aioidem.

    Attributes:
        status: NOT_WRITTEN (not in the log) or UNKNOWN (may be in the log) if the error is a
            record's outcome, or if a call that sends raised it before the record was queued; None
            in all other cases.
        retriable: Whether the same call may succeed later.
        invalid_metadata: Whether the error shows that the cluster's metadata is out of date.
        incident: What identifies the record's batch in the log, if the record's outcome is UNKNOWN;
            `aioidem.Producer.resolve` and `aioidem resolve` look for it. None in all other cases,
            and if the producer is not idempotent.
    """

    retriable: ClassVar[bool] = False
    invalid_metadata: ClassVar[bool] = False
    status: DeliveryStatus | None
    incident: Incident | None = None

    def __init__(self, *args: object, status: DeliveryStatus | None = None) -> None:
        super().__init__(*args)
        self.status = status

    def __str__(self) -> str:
        """Return the class's name and the arguments, so that a log line says which error it was."""
        if not self.args:
            return type(self).__name__
        return f"{type(self).__name__}: {super().__str__()}"

    def __copy__(self) -> Self:
        """Return a copy with the same ``__cause__``, which pickling would drop.

        The constructor of a user's subclass is not called: it may take other arguments.
        """
        native = OSError if isinstance(self, OSError) else RuntimeError
        other = native.__new__(type(self), *self.args)
        KafkaError.__init__(other, *self.args)
        other.__dict__.update(self.__dict__)
        if "__notes__" in other.__dict__:
            other.__notes__ = list(other.__notes__)
        if self.__cause__ is not None:
            other.__cause__ = self.__cause__
        return other


class ConfigError(KafkaError, ValueError):
    """An option is unknown, has an illegal value or contradicts another one."""


class RecordError(KafkaError, ValueError):
    """A record was not queued: its topic, partition, key, value, headers or timestamp is bad.

    Its ``status`` is NOT_WRITTEN.
    """

    def __init__(
        self, *args: object, status: DeliveryStatus | None = DeliveryStatus.NOT_WRITTEN
    ) -> None:
        super().__init__(*args, status=status)


class KafkaTimeoutError(KafkaError, TimeoutError):
    """A call waited longer than its timeout, for example for metadata or for room in the buffer."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not acknowledged within ``delivery_timeout``.

    ``status`` says whether the record may be in the log (UNKNOWN) or not (NOT_WRITTEN).
    """


class BufferFullError(KafkaError):
    """``send_nowait`` found no room within ``buffer_memory``; the record was not queued."""

    retriable = True


class KafkaConnectionError(KafkaError):
    """A broker could not be reached, or the connection to it was lost."""

    retriable = True
    invalid_metadata = True


class NotKafkaError(KafkaConnectionError):
    """The server does not speak the protocol that was expected: Kafka, or TLS.

    The message names the protocol that the server speaks, if it can be recognised.
    """

    retriable = False
    invalid_metadata = False


class BrokerNotAllowedError(KafkaConnectionError):
    """The cluster named a broker at an address that ``allowed_brokers`` does not allow.

    Nothing was sent to that address.
    """


class AuthenticationFailedError(KafkaError):
    """The broker rejected the client, or the client rejected the broker.

    The reason is the credentials, the SASL mechanism, a certificate, or (SCRAM) that the broker
    cannot prove that it knows the password. The same attempt would fail again.
    """


class SslAuthenticationError(AuthenticationFailedError):
    """The TLS handshake failed because of a certificate, a host name or a TLS version."""


class ProtocolError(KafkaError):
    """A broker sent a frame or a message that violates the protocol; its connection is closed."""


class ProducerClosed(KafkaError):
    """The producer is not started, is closing or is closed."""


class ClusterChangedError(KafkaError):
    """The bootstrap servers lead to another cluster, and no connection to the old one is left.

    Records that may have been written to the old cluster end UNKNOWN with this error. With
    ``on_cluster_change="fail"`` or a transactional id the producer ends as well.
    """


class IncompatibleBrokerVersion(KafkaError):
    """The broker supports no version of a Kafka API that aioidem supports."""


class UnsupportedCodecError(KafkaError):
    """The library for a compression codec is not installed, or no such codec exists."""


class RecordOutcome(Protocol):
    """The public members of `aioidem.Delivery`, the outcome of one record.

    `PartialDeliveryError.deliveries` has this type instead of `Delivery`, because the file of
    `Delivery` imports this one, and imports must not go in a circle.
    """

    @property
    def status(self) -> DeliveryStatus:
        """What is known of the record: PENDING until it is ACKED, NOT_WRITTEN or UNKNOWN."""
        ...

    @property
    def metadata(self) -> RecordMetadata:
        """Where the record is in the log; raises the error of a record that failed."""
        ...

    def done(self) -> bool:
        """Return whether the outcome is known."""
        ...

    def exception(self) -> KafkaError | None:
        """Return the error that the record failed with; None if it has not failed."""
        ...

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call `callback(delivery)` when the outcome is known: now, if it is known already."""
        ...

    def __await__(self) -> Generator[Any, None, RecordMetadata]: ...


class PartialDeliveryError(KafkaError):
    """Some records of a ``send_many`` failed, or an error kept its last records from being queued.

    Attributes:
        deliveries: The `aioidem.Delivery` of each record that was queued, in call order.
    """

    deliveries: Sequence[RecordOutcome]

    def __init__(
        self,
        *args: object,
        deliveries: Sequence[RecordOutcome] = (),
        status: DeliveryStatus | None = None,
    ) -> None:
        super().__init__(*args, status=status)
        self.deliveries = deliveries


class FlightRecordError(KafkaError):
    """A flight record cannot be written or read, or its events fit no engine of this version."""


class ForkedProducerError(KafkaError):
    """A producer was used in a child process after ``fork()``.

    It would share its producer id and sequence numbers with the parent's producer, and the broker
    would drop records of one as duplicates of the other's. Make a new producer in the child.
    """


class WrongLoopError(KafkaError, RuntimeError):
    """A producer was called from another event loop or thread than the one it was started on.

    Nothing was queued, and the producer keeps working.
    """


class InternalError(KafkaError):
    """The producer reached an impossible state: a defect of aioidem, which should be reported."""


class IllegalOperation(KafkaError):
    """A call needs a transactional id or an open transaction, and there is none."""


class IllegalStateError(KafkaError):
    """A call does not fit the transaction's state, such as a commit before a begin.

    The transaction's state has not changed.
    """


class AbortableTransactionError(KafkaError):
    """The transaction can only be aborted; after that the producer can begin another one.

    ``__cause__`` is the error that made the abort necessary. Every other error that a transaction's
    calls raise is fatal for the producer, except `KafkaTimeoutError` (call again),
    `IllegalStateError` and `IllegalOperation`.
    """


class TransactionAborted(KafkaError):
    """The record's transaction was aborted before the record was acknowledged.

    Consumers that read committed data never see the record.
    """
