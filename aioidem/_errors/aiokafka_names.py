"""Error classes that aiokafka has and aioidem never raises.

With them, code that names one in an import or an ``except`` clause can move from aiokafka to
aioidem by changing the import. Each docstring says what aioidem raises or does instead, if
anything. aiokafka 0.14 itself does not raise some of these classes.

Rejected: subclassing aiokafka's exceptions when aiokafka is installed (the class tree would depend
on what else is installed; `aioidem.integrations.aiokafka` translates instead).
"""

from __future__ import annotations

from aioidem._errors.codes import (
    CorruptRecordException,
    GroupCoordinatorNotAvailableError,
    GroupLoadInProgressError,
    NetworkException,
    NotCoordinatorForGroupError,
)
from aioidem._errors.local import ConfigError, KafkaError

__all__ = [
    "AuthenticationMethodNotSupported",
    "Cancelled",
    "CommitFailedError",
    "ConsumerStoppedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorrelationIdError",
    "IllegalArgumentError",
    "InvalidMessageError",
    "KafkaConfigurationError",
    "KafkaProtocolError",
    "KafkaUnavailableError",
    "MetadataEmptyBrokerList",
    "NoBrokersAvailable",
    "NoOffsetForPartitionError",
    "NodeNotReadyError",
    "NotCoordinatorError",
    "QuotaViolationError",
    "RecordTooLargeError",
    "StaleLeaderEpochCodeError",
    "StaleMetadata",
    "TooManyInFlightRequests",
    "UnrecognizedBrokerVersion",
]


class IllegalArgumentError(KafkaError):
    """aiokafka's admin client raises this; aioidem never does."""


class NoBrokersAvailable(KafkaError):
    """aiokafka 0.14 never raises this; aioidem raises `KafkaConnectionError`."""

    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    """aiokafka raises this for a broker that is not connected; aioidem waits for the connection."""

    retriable = True


class KafkaProtocolError(KafkaError):
    """aiokafka raises a subclass of this; aioidem raises `ProtocolError`."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """aiokafka raises this for an answer to another request; aioidem raises `ProtocolError`."""


class Cancelled(KafkaError):
    """Neither aiokafka 0.14 nor aioidem raises this."""

    retriable = True


class TooManyInFlightRequests(KafkaError):
    """Neither aiokafka 0.14 nor aioidem raises this."""

    retriable = True


class StaleMetadata(KafkaError):
    """aiokafka raises this for a broker or partition not in its metadata; aioidem never does."""

    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    """aiokafka raises this for metadata that names no broker; aioidem never does."""

    retriable = True


class UnrecognizedBrokerVersion(KafkaError):
    """aiokafka 0.14 never raises this; aioidem raises `IncompatibleBrokerVersion`."""


class CommitFailedError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class AuthenticationMethodNotSupported(KafkaError):
    """aiokafka 0.14 never raises this; aioidem raises `UnsupportedSaslMechanismError`."""


class KafkaUnavailableError(KafkaError):
    """aiokafka 0.14 never raises this; aioidem raises `KafkaConnectionError`."""


class QuotaViolationError(KafkaError):
    """Neither aiokafka 0.14 nor aioidem raises this."""


class ConsumerStoppedError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class NoOffsetForPartitionError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class RecordTooLargeError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


KafkaConfigurationError = ConfigError

# aiokafka has two names for the class of each of these error codes.
InvalidMessageError = CorruptRecordException
CoordinatorLoadInProgressError = GroupLoadInProgressError
CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError
NotCoordinatorError = NotCoordinatorForGroupError
StaleLeaderEpochCodeError = NetworkException
