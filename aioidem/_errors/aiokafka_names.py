"""Error classes that aiokafka has and aioidem never raises.

They exist so that code which names them in an import or an ``except`` clause can move from aiokafka
to aioidem by changing the import. Each docstring says what aioidem raises instead.

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
    """aiokafka raises this; aioidem never does."""


class NoBrokersAvailable(KafkaError):
    """aiokafka raises this; aioidem raises `KafkaConnectionError`."""

    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    """aiokafka raises this for a broker that is not connected; aioidem waits for the connection."""

    retriable = True


class KafkaProtocolError(KafkaError):
    """aiokafka raises this; aioidem raises `ProtocolError`."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """aiokafka raises this; aioidem raises `ProtocolError`."""


class Cancelled(KafkaError):
    """aiokafka raises this; aioidem never does."""

    retriable = True


class TooManyInFlightRequests(KafkaError):
    """aiokafka raises this; aioidem never does."""

    retriable = True


class StaleMetadata(KafkaError):
    """aiokafka raises this; aioidem never does."""

    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    """aiokafka raises this; aioidem never does."""

    retriable = True


class UnrecognizedBrokerVersion(KafkaError):
    """aiokafka raises this; aioidem raises `IncompatibleBrokerVersion`."""


class CommitFailedError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class AuthenticationMethodNotSupported(KafkaError):
    """aiokafka raises this; aioidem raises `UnsupportedSaslMechanismError`."""


class KafkaUnavailableError(KafkaError):
    """aiokafka raises this; aioidem raises `KafkaConnectionError`."""


class QuotaViolationError(KafkaError):
    """aiokafka raises this; aioidem never does."""


class ConsumerStoppedError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class NoOffsetForPartitionError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


class RecordTooLargeError(KafkaError):
    """aiokafka's consumer raises this; aioidem never does."""


KafkaConfigurationError = ConfigError

# Second names that aiokafka has for the same codes.
InvalidMessageError = CorruptRecordException
CoordinatorLoadInProgressError = GroupLoadInProgressError
CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError
NotCoordinatorError = NotCoordinatorForGroupError
StaleLeaderEpochCodeError = NetworkException
