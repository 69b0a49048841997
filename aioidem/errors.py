"""Every exception aioidem raises, local and from brokers, under one base class.

Names, ``retriable`` and ``invalid_metadata`` are aiokafka's wherever aiokafka has the class, so
that ``except`` clauses move over with the import; other codes take Java's name and flags.

Invariants:

- An exception that settles a record carries ``status``: NOT_WRITTEN or UNKNOWN, never PENDING.
- Every error can be copied and pickled with its attributes, because a batch's error is copied for
  each of its records, and load tests send errors between processes.
- One class per error code; ``error_for_code`` finds it, and a code without one is `UnknownError`.
- ``retriable`` says whether the same call may succeed later. It decides nothing here: what the
  producer does with a code is in the engine's table, which also knows what may be stored already.

Rejected: subclassing aiokafka's exceptions when it is importable (the class tree would depend on
what else is installed: `aioidem.integrations.aiokafka` translates instead); one generic class with
a code (nobody can ``except`` a number); classes that neither a producer can meet nor aiokafka has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from aioidem.structs import DeliveryStatus

if TYPE_CHECKING:
    from aioidem._producer.delivery import Delivery

__all__ = [
    "AbortableTransactionError",
    "AuthenticationFailedError",
    "AuthenticationMethodNotSupported",
    "BrokerNotAllowedError",
    "BrokerNotAvailableError",
    "BrokerResponseError",
    "BufferFullError",
    "Cancelled",
    "ClusterAuthorizationFailedError",
    "ClusterChangedError",
    "CommitFailedError",
    "ConcurrentTransactions",
    "ConfigError",
    "ConsumerStoppedError",
    "CoordinatorLoadInProgressError",
    "CoordinatorNotAvailableError",
    "CorrelationIdError",
    "CorruptRecordException",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DeliveryTimeoutError",
    "DuplicateSequenceNumber",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FetchSessionIdNotFound",
    "ForkedProducerError",
    "GroupAuthorizationFailedError",
    "GroupCoordinatorNotAvailableError",
    "GroupIdNotFound",
    "GroupLoadInProgressError",
    "IllegalArgumentError",
    "IllegalGenerationError",
    "IllegalOperation",
    "IllegalSaslStateError",
    "IllegalStateError",
    "IncompatibleBrokerVersion",
    "InconsistentClusterId",
    "InconsistentGroupProtocolError",
    "InconsistentTopicId",
    "InternalError",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError",
    "InvalidFetchRequestError",
    "InvalidFetchSessionEpoch",
    "InvalidGroupIdError",
    "InvalidMessageError",
    "InvalidPartitionsError",
    "InvalidPrincipalType",
    "InvalidProducerEpoch",
    "InvalidProducerIdMapping",
    "InvalidRecord",
    "InvalidReplicationAssignmentError",
    "InvalidReplicationFactorError",
    "InvalidRequestError",
    "InvalidRequiredAcksError",
    "InvalidSessionTimeoutError",
    "InvalidTimestampError",
    "InvalidTopicError",
    "InvalidTransactionTimeout",
    "InvalidTxnState",
    "KafkaConfigurationError",
    "KafkaConnectionError",
    "KafkaError",
    "KafkaProtocolError",
    "KafkaStorageError",
    "KafkaTimeoutError",
    "KafkaUnavailableError",
    "LeaderNotAvailableError",
    "ListenerNotFound",
    "LogDirNotFound",
    "MemberIdRequired",
    "MessageSizeTooLargeError",
    "MetadataEmptyBrokerList",
    "NetworkException",
    "NoBrokersAvailable",
    "NoError",
    "NoOffsetForPartitionError",
    "NodeNotReadyError",
    "NonEmptyGroup",
    "NotControllerError",
    "NotCoordinatorError",
    "NotCoordinatorForGroupError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotKafkaError",
    "NotLeaderForPartitionError",
    "OffsetMetadataTooLargeError",
    "OffsetNotAvailable",
    "OffsetOutOfRangeError",
    "OperationNotAttempted",
    "OutOfOrderSequenceNumber",
    "PartialDeliveryError",
    "PolicyViolationError",
    "ProducerClosed",
    "ProducerFenced",
    "ProtocolError",
    "QuotaViolationError",
    "ReassignmentInProgress",
    "RebalanceInProgressError",
    "RebootstrapRequired",
    "RecordError",
    "RecordListTooLargeError",
    "RecordTooLargeError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "ResourceNotFound",
    "SaslAuthenticationFailed",
    "SecurityDisabled",
    "SslAuthenticationError",
    "StaleControllerEpochError",
    "StaleLeaderEpochCodeError",
    "StaleMemberEpoch",
    "StaleMetadata",
    "ThrottlingQuotaExceeded",
    "TooManyInFlightRequests",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicDeletionDisabled",
    "TransactionAbortable",
    "TransactionAborted",
    "TransactionCoordinatorFenced",
    "TransactionalIdAuthorizationFailed",
    "TransactionalIdNotFound",
    "UnknownError",
    "UnknownLeaderEpoch",
    "UnknownMemberIdError",
    "UnknownProducerId",
    "UnknownTopicId",
    "UnknownTopicOrPartitionError",
    "UnrecognizedBrokerVersion",
    "UnstableOffsetCommit",
    "UnsupportedCodecError",
    "UnsupportedCompressionType",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "WrongLoopError",
    "broker_error",
    "error_for_code",
    "for_code",
    "kafka_errors",
]


class KafkaError(RuntimeError):
    """Base of all errors of aioidem.

    ``status`` is what became of the record this error was raised for, or None when the error is
    not a record's outcome.
    """

    retriable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change of arguments or configuration."""

    invalid_metadata: ClassVar[bool] = False
    """Whether the error says that what is known about the cluster is out of date."""

    status: DeliveryStatus | None

    def __init__(self, *args: object, status: DeliveryStatus | None = None) -> None:
        super().__init__(*args)
        self.status = status

    def __str__(self) -> str:
        """The class name, then the arguments: a log line must say which error it was."""
        if not self.args:
            return type(self).__name__
        return f"{type(self).__name__}: {super().__str__()}"

    def __copy__(self) -> Self:
        """With its cause, which is no part of what pickling keeps."""
        reduced: Any = self.__reduce__()
        make, arguments, *state = reduced
        other: Self = make(*arguments)
        other.__dict__.update(*state)
        if self.__cause__ is not None:
            other.__cause__ = self.__cause__
        return other


class ConfigError(KafkaError, ValueError):
    """An option is unknown, has an illegal value, or contradicts another one."""


class RecordError(KafkaError, ValueError):
    """A record cannot be sent as given: topic name, partition, key, value, headers or timestamp."""


class KafkaTimeoutError(KafkaError, TimeoutError):
    """Something took longer than allowed: metadata, room in the buffer, a flush, a close."""


class DeliveryTimeoutError(KafkaTimeoutError):
    """A record was not settled within ``delivery_timeout``; ``status`` says if it may be stored."""


class BufferFullError(KafkaError):
    """``send_nowait`` found no room within ``buffer_memory``. The record was not taken."""

    retriable = True


class KafkaConnectionError(KafkaError):
    """A broker could not be reached, or the connection to it was lost."""

    retriable = True
    invalid_metadata = True


class NotKafkaError(KafkaConnectionError):
    """The peer does not speak what it was spoken to in, plaintext Kafka or TLS; the message names
    what it seems to speak.
    """

    retriable = False
    invalid_metadata = False


class BrokerNotAllowedError(KafkaConnectionError):
    """The cluster named a broker at an address that `allowed_brokers` does not have. Nothing was
    sent there.
    """


class AuthenticationFailedError(KafkaError):
    """This side and a broker do not accept one another: credentials, mechanism, certificate, or a
    broker that cannot prove that it knows the password. The same attempt would fail again.
    """


class SslAuthenticationError(AuthenticationFailedError):
    """The TLS handshake failed: a certificate, a host name or a version is not accepted."""


class ProtocolError(KafkaError):
    """A broker sent a frame or a message that cannot be right. The connection is given up."""


class ProducerClosed(KafkaError):
    """The producer is not started, is closing, or is closed."""


class ClusterChangedError(KafkaError):
    """The bootstrap servers lead to another cluster than before, and the old one is gone.

    What may have been written to the old one ends UNKNOWN with it. Under
    ``on_cluster_change="fail"``, and for every transactional producer, the producer ends with it.
    """


class IncompatibleBrokerVersion(KafkaError):
    """The broker offers no version of an API that aioidem speaks."""


class UnsupportedCodecError(KafkaError):
    """The library for a compression codec is not installed, or no such codec exists."""


class PartialDeliveryError(KafkaError):
    """Some records of a ``send_many`` failed; ``deliveries`` holds each outcome, in order."""

    deliveries: Sequence[Delivery]

    def __init__(
        self,
        *args: object,
        deliveries: Sequence[Delivery] = (),
        status: DeliveryStatus | None = None,
    ) -> None:
        super().__init__(*args, status=status)
        self.deliveries = deliveries


class ForkedProducerError(KafkaError):
    """A producer was used in a child of ``fork()``.

    It would share its producer id and sequences with the parent, and lose records in silence.
    """


class WrongLoopError(KafkaError, RuntimeError):
    """A producer was called from another event loop, or another thread, than the one it was started
    on. Nothing was queued, and the producer is none the worse for it.
    """


class InternalError(KafkaError):
    """A state that cannot be: a defect of aioidem to report, not something to handle."""


# -- what only aiokafka raises ---------------------------------------------------------------------
#
# aioidem raises none of these, except those for transactions: they are here because code that names
# them in an import or an except clause moves over with it.


class IllegalOperation(KafkaError):
    """What was asked for cannot be done as things are: transactions without a transactional id,
    a record outside of one.
    """


class IllegalStateError(KafkaError):
    """A call for a transaction does not fit its state, which is as it was: a second begin, a commit
    without one.
    """


class AbortableTransactionError(KafkaError):
    """The transaction can only be aborted; then the producer is as good as new.

    ``__cause__`` is what failed. Any other error of a transaction's calls is fatal, but for
    `KafkaTimeoutError` (call again) and the two for calls out of order.
    """


class TransactionAborted(KafkaError):
    """The record's transaction was aborted before the record was acknowledged: no reader of
    committed data will see it.
    """


class IllegalArgumentError(KafkaError):
    """aiokafka's; never raised here."""


class NoBrokersAvailable(KafkaError):
    """aiokafka's; here `KafkaConnectionError`."""

    retriable = True
    invalid_metadata = True


class NodeNotReadyError(KafkaError):
    """aiokafka's for a broker that cannot be asked now; here such a request waits."""

    retriable = True


class KafkaProtocolError(KafkaError):
    """aiokafka's; here `ProtocolError`."""

    retriable = True


class CorrelationIdError(KafkaProtocolError):
    """aiokafka's; here `ProtocolError`."""


class Cancelled(KafkaError):
    """aiokafka's; never raised here."""

    retriable = True


class TooManyInFlightRequests(KafkaError):
    """aiokafka's; never raised here."""

    retriable = True


class StaleMetadata(KafkaError):
    """aiokafka's; never raised here."""

    retriable = True
    invalid_metadata = True


class MetadataEmptyBrokerList(KafkaError):
    """aiokafka's; never raised here."""

    retriable = True


class UnrecognizedBrokerVersion(KafkaError):
    """aiokafka's; here `IncompatibleBrokerVersion`."""


class CommitFailedError(KafkaError):
    """aiokafka's consumer's."""


class AuthenticationMethodNotSupported(KafkaError):
    """aiokafka's; here `UnsupportedSaslMechanismError`."""


class KafkaUnavailableError(KafkaError):
    """aiokafka's; here `KafkaConnectionError`."""


class QuotaViolationError(KafkaError):
    """aiokafka's; never raised here."""


class ConsumerStoppedError(KafkaError):
    """aiokafka's consumer's."""


class NoOffsetForPartitionError(KafkaError):
    """aiokafka's consumer's."""


class RecordTooLargeError(KafkaError):
    """aiokafka's consumer's."""


KafkaConfigurationError = ConfigError


class BrokerResponseError(KafkaError):
    """A broker answered with an error code.

    ``errno`` is the code on the wire, ``message`` its name in the protocol, ``description`` the
    class's docstring.
    An instance's ``errno`` differs from its class's only for `UnknownError`.
    """

    errno: int = -1
    message: ClassVar[str] = "UNKNOWN"
    description: ClassVar[str] = ""

    def __init_subclass__(
        cls,
        *,
        errno: int,
        message: str,
        retriable: bool = False,
        invalid_metadata: bool = False,
        **kwargs: object,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if errno in _BY_CODE:
            raise TypeError(f"error code {errno} belongs to {_BY_CODE[errno].__name__} already")
        cls.errno = errno
        cls.message = message
        cls.description = cls.__doc__ or ""
        cls.retriable = retriable
        cls.invalid_metadata = invalid_metadata
        _BY_CODE[errno] = cls

    def __str__(self) -> str:
        """aiokafka's form: the code in brackets first."""
        return f"[Error {self.errno}] {super().__str__()}"


_BY_CODE: dict[int, type[BrokerResponseError]] = {}


class UnknownError(BrokerResponseError, errno=-1, message="UNKNOWN"):
    """The broker failed in a way it has no code for, or answered with a code aioidem does not
    know: ``errno`` is that code.
    """

    def __str__(self) -> str:
        """With what a number that nobody here knows means."""
        text = super().__str__()
        if self.errno == UnknownError.errno:
            return text
        return f"{text} (this version of aioidem knows no error code {self.errno})"


class OffsetOutOfRangeError(BrokerResponseError, errno=1, message="OFFSET_OUT_OF_RANGE"):
    """The offset asked for is outside the log."""


class CorruptRecordException(BrokerResponseError, errno=2, message="CORRUPT_MESSAGE"):
    """The batch failed its CRC or is otherwise malformed; raised before the append."""


class UnknownTopicOrPartitionError(
    BrokerResponseError,
    errno=3,
    message="UNKNOWN_TOPIC_OR_PARTITION",
    retriable=True,
    invalid_metadata=True,
):
    """The broker does not host this topic or partition."""


class InvalidFetchRequestError(BrokerResponseError, errno=4, message="INVALID_FETCH_SIZE"):
    """The fetch size asked for is not possible."""


class LeaderNotAvailableError(
    BrokerResponseError,
    errno=5,
    message="LEADER_NOT_AVAILABLE",
    retriable=True,
    invalid_metadata=True,
):
    """The partition has no leader now, as during an election."""


class NotLeaderForPartitionError(
    BrokerResponseError,
    errno=6,
    message="NOT_LEADER_FOR_PARTITION",
    retriable=True,
    invalid_metadata=True,
):
    """The broker does not lead this partition, or lost the lead before the batch was replicated."""


class RequestTimedOutError(
    BrokerResponseError, errno=7, message="REQUEST_TIMED_OUT", retriable=True
):
    """The broker gave up waiting for the replicas; the batch may be appended all the same."""


class BrokerNotAvailableError(BrokerResponseError, errno=8, message="BROKER_NOT_AVAILABLE"):
    """The broker is not available."""


class ReplicaNotAvailableError(BrokerResponseError, errno=9, message="REPLICA_NOT_AVAILABLE"):
    """The replica asked for is not available."""


class MessageSizeTooLargeError(BrokerResponseError, errno=10, message="MESSAGE_SIZE_TOO_LARGE"):
    """The batch is larger than the topic's max.message.bytes, or one record than
    max_request_size.
    """


class OffsetMetadataTooLargeError(
    BrokerResponseError, errno=12, message="OFFSET_METADATA_TOO_LARGE"
):
    """The text beside a committed offset is too long."""


class NetworkException(BrokerResponseError, errno=13, message="NETWORK_EXCEPTION", retriable=True):
    """The broker lost a connection it needed to answer."""


class GroupLoadInProgressError(
    BrokerResponseError, errno=14, message="COORDINATOR_LOAD_IN_PROGRESS", retriable=True
):
    """The coordinator is still loading and cannot answer yet."""


class GroupCoordinatorNotAvailableError(
    BrokerResponseError, errno=15, message="COORDINATOR_NOT_AVAILABLE", retriable=True
):
    """There is no coordinator now."""


class NotCoordinatorForGroupError(
    BrokerResponseError, errno=16, message="NOT_COORDINATOR", retriable=True
):
    """This broker is not the coordinator of that group or transactional id."""


class InvalidTopicError(BrokerResponseError, errno=17, message="INVALID_TOPIC"):
    """The topic's name is illegal, or the topic is an internal one."""


class RecordListTooLargeError(BrokerResponseError, errno=18, message="RECORD_LIST_TOO_LARGE"):
    """The batch is larger than a log segment."""


class NotEnoughReplicasError(
    BrokerResponseError, errno=19, message="NOT_ENOUGH_REPLICAS", retriable=True
):
    """Fewer replicas in sync than min.insync.replicas; refused before the append."""


class NotEnoughReplicasAfterAppendError(
    BrokerResponseError, errno=20, message="NOT_ENOUGH_REPLICAS_AFTER_APPEND", retriable=True
):
    """The batch was appended, and then too few replicas were in sync."""


class InvalidRequiredAcksError(BrokerResponseError, errno=21, message="INVALID_REQUIRED_ACKS"):
    """The broker does not know this acks value."""


class IllegalGenerationError(BrokerResponseError, errno=22, message="ILLEGAL_GENERATION"):
    """The consumer group has moved on from the generation given."""


class InvalidGroupIdError(BrokerResponseError, errno=24, message="INVALID_GROUP_ID"):
    """The group id is not legal."""


class UnknownMemberIdError(BrokerResponseError, errno=25, message="UNKNOWN_MEMBER_ID"):
    """The consumer group does not know this member."""


class RebalanceInProgressError(BrokerResponseError, errno=27, message="REBALANCE_IN_PROGRESS"):
    """The consumer group is rebalancing."""


class InvalidCommitOffsetSizeError(
    BrokerResponseError, errno=28, message="INVALID_COMMIT_OFFSET_SIZE"
):
    """The offset commit is too large."""


class TopicAuthorizationFailedError(
    BrokerResponseError, errno=29, message="TOPIC_AUTHORIZATION_FAILED"
):
    """Not authorised for the topic."""


class GroupAuthorizationFailedError(
    BrokerResponseError, errno=30, message="GROUP_AUTHORIZATION_FAILED"
):
    """Not authorised for the consumer group."""


class ClusterAuthorizationFailedError(
    BrokerResponseError, errno=31, message="CLUSTER_AUTHORIZATION_FAILED"
):
    """Not authorised for the cluster."""


class InvalidTimestampError(BrokerResponseError, errno=32, message="INVALID_TIMESTAMP"):
    """A record's timestamp is outside what the topic accepts."""


class UnsupportedSaslMechanismError(
    BrokerResponseError,
    AuthenticationFailedError,
    errno=33,
    message="UNSUPPORTED_SASL_MECHANISM",
):
    """The broker does not offer this SASL mechanism."""


class IllegalSaslStateError(
    BrokerResponseError, AuthenticationFailedError, errno=34, message="ILLEGAL_SASL_STATE"
):
    """A request came where the SASL exchange does not allow it."""


class UnsupportedVersionError(BrokerResponseError, errno=35, message="UNSUPPORTED_VERSION"):
    """The broker does not speak this version of the API."""


class TopicAlreadyExistsError(BrokerResponseError, errno=36, message="TOPIC_ALREADY_EXISTS"):
    """The topic to be created is there already."""


class InvalidPartitionsError(BrokerResponseError, errno=37, message="INVALID_PARTITIONS"):
    """The number of partitions is not legal."""


class InvalidReplicationFactorError(
    BrokerResponseError, errno=38, message="INVALID_REPLICATION_FACTOR"
):
    """The replication factor is not legal, or larger than the cluster."""


class InvalidReplicationAssignmentError(
    BrokerResponseError, errno=39, message="INVALID_REPLICATION_ASSIGNMENT"
):
    """The replica assignment is not legal."""


class InvalidConfigurationError(BrokerResponseError, errno=40, message="INVALID_CONFIG"):
    """A topic or broker config has an illegal value."""


class NotControllerError(BrokerResponseError, errno=41, message="NOT_CONTROLLER", retriable=True):
    """This broker is not the controller."""


class InvalidRequestError(BrokerResponseError, errno=42, message="INVALID_REQUEST"):
    """The broker finds the request contradictory."""


class UnsupportedForMessageFormatError(
    BrokerResponseError, errno=43, message="UNSUPPORTED_FOR_MESSAGE_FORMAT"
):
    """The topic's message format is too old for this."""


class PolicyViolationError(BrokerResponseError, errno=44, message="POLICY_VIOLATION"):
    """The cluster's policy forbids it."""


class OutOfOrderSequenceNumber(
    BrokerResponseError, errno=45, message="OUT_OF_ORDER_SEQUENCE_NUMBER"
):
    """The batch is not the next one the broker expects of this producer."""


class DuplicateSequenceNumber(BrokerResponseError, errno=46, message="DUPLICATE_SEQUENCE_NUMBER"):
    """The broker has appended this batch before."""


class InvalidProducerEpoch(BrokerResponseError, errno=47, message="INVALID_PRODUCER_EPOCH"):
    """The producer's epoch is older than the one the broker knows."""


class InvalidTxnState(BrokerResponseError, errno=48, message="INVALID_TXN_STATE"):
    """The transaction is not in a state that allows this."""


class InvalidProducerIdMapping(
    BrokerResponseError, errno=49, message="INVALID_PRODUCER_ID_MAPPING"
):
    """The producer id is not the one of this transactional id."""


class InvalidTransactionTimeout(
    BrokerResponseError, errno=50, message="INVALID_TRANSACTION_TIMEOUT"
):
    """The transaction timeout is above transaction.max.timeout.ms."""


class ConcurrentTransactions(BrokerResponseError, errno=51, message="CONCURRENT_TRANSACTIONS"):
    """The previous transaction of this transactional id is still being finished."""


class TransactionCoordinatorFenced(
    BrokerResponseError, errno=52, message="TRANSACTION_COORDINATOR_FENCED"
):
    """The transaction coordinator was replaced."""


class TransactionalIdAuthorizationFailed(
    BrokerResponseError, errno=53, message="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
):
    """Not authorised for the transactional id."""


class SecurityDisabled(BrokerResponseError, errno=54, message="SECURITY_DISABLED"):
    """The cluster has no security features turned on."""


class OperationNotAttempted(BrokerResponseError, errno=55, message="OPERATION_NOT_ATTEMPTED"):
    """Not tried, because another partition of the request failed."""


class KafkaStorageError(
    BrokerResponseError,
    errno=56,
    message="KAFKA_STORAGE_ERROR",
    retriable=True,
    invalid_metadata=True,
):
    """The broker's disk failed; the batch may be appended."""


class SaslAuthenticationFailed(
    BrokerResponseError, AuthenticationFailedError, errno=58, message="SASL_AUTHENTICATION_FAILED"
):
    """The broker rejected the credentials."""


class UnknownProducerId(BrokerResponseError, errno=59, message="UNKNOWN_PRODUCER_ID"):
    """The broker has no state for this producer id; brokers of 2.8 and later no longer say so."""


class NonEmptyGroup(BrokerResponseError, errno=68, message="NON_EMPTY_GROUP"):
    """The consumer group has members."""


class GroupIdNotFound(BrokerResponseError, errno=69, message="GROUP_ID_NOT_FOUND"):
    """There is no such consumer group."""


class TopicDeletionDisabled(BrokerResponseError, errno=73, message="TOPIC_DELETION_DISABLED"):
    """The cluster does not allow topics to be deleted."""


class FencedLeaderEpoch(
    BrokerResponseError,
    errno=74,
    message="FENCED_LEADER_EPOCH",
    retriable=True,
    invalid_metadata=True,
):
    """The leader epoch given is older than the broker's."""


class UnknownLeaderEpoch(
    BrokerResponseError, errno=75, message="UNKNOWN_LEADER_EPOCH", retriable=True
):
    """The leader epoch given is newer than the broker's."""


class UnsupportedCompressionType(
    BrokerResponseError, errno=76, message="UNSUPPORTED_COMPRESSION_TYPE"
):
    """The broker does not support this codec."""


class OffsetNotAvailable(
    BrokerResponseError, errno=78, message="OFFSET_NOT_AVAILABLE", retriable=True
):
    """The leader does not know its high watermark yet."""


class FencedInstanceId(BrokerResponseError, errno=82, message="FENCED_INSTANCE_ID"):
    """Another consumer took over this static member."""


class InvalidRecord(BrokerResponseError, errno=87, message="INVALID_RECORD"):
    """The broker refused one or more records of the batch, as a compacted topic does those
    without a key.
    """


class UnstableOffsetCommit(
    BrokerResponseError, errno=88, message="UNSTABLE_OFFSET_COMMIT", retriable=True
):
    """A transaction that moves this offset is still open."""


class ThrottlingQuotaExceeded(
    BrokerResponseError, errno=89, message="THROTTLING_QUOTA_EXCEEDED", retriable=True
):
    """A quota of the cluster is used up for now."""


class ProducerFenced(BrokerResponseError, errno=90, message="PRODUCER_FENCED"):
    """A newer producer took over this transactional id, or the transaction timed out."""


class ResourceNotFound(BrokerResponseError, errno=91, message="RESOURCE_NOT_FOUND"):
    """There is no such resource."""


class UnknownTopicId(
    BrokerResponseError,
    errno=100,
    message="UNKNOWN_TOPIC_ID",
    retriable=True,
    invalid_metadata=True,
):
    """The broker does not host a topic with this id; it may have been deleted and made anew."""


class InconsistentTopicId(
    BrokerResponseError,
    errno=103,
    message="INCONSISTENT_TOPIC_ID",
    retriable=True,
    invalid_metadata=True,
):
    """The topic's id in the log is another than the one given."""


class InconsistentClusterId(BrokerResponseError, errno=104, message="INCONSISTENT_CLUSTER_ID"):
    """The broker belongs to another cluster."""


class TransactionalIdNotFound(BrokerResponseError, errno=105, message="TRANSACTIONAL_ID_NOT_FOUND"):
    """There is no such transactional id."""


class FencedMemberEpoch(BrokerResponseError, errno=110, message="FENCED_MEMBER_EPOCH"):
    """The consumer group fenced this member."""


class StaleMemberEpoch(BrokerResponseError, errno=113, message="STALE_MEMBER_EPOCH"):
    """The member's epoch is older than the group's."""


class TransactionAbortable(BrokerResponseError, errno=120, message="TRANSACTION_ABORTABLE"):
    """The transaction can only be aborted; the producer stays usable."""


class RebootstrapRequired(BrokerResponseError, errno=129, message="REBOOTSTRAP_REQUIRED"):
    """The broker asks the client to start again from its bootstrap servers."""


# Not a producer's, but aiokafka has classes for them.


class NoError(BrokerResponseError, errno=0, message="NO_ERROR"):
    """No error."""


class StaleControllerEpochError(BrokerResponseError, errno=11, message="STALE_CONTROLLER_EPOCH"):
    """The controller has been replaced."""


class InconsistentGroupProtocolError(
    BrokerResponseError, errno=23, message="INCONSISTENT_GROUP_PROTOCOL"
):
    """The member's assignment protocols are not the group's."""


class InvalidSessionTimeoutError(BrokerResponseError, errno=26, message="INVALID_SESSION_TIMEOUT"):
    """The session timeout is outside of what the broker allows."""


class LogDirNotFound(BrokerResponseError, errno=57, message="LOG_DIR_NOT_FOUND"):
    """There is no such log directory."""


class ReassignmentInProgress(BrokerResponseError, errno=60, message="REASSIGNMENT_IN_PROGRESS"):
    """The partition is being reassigned."""


class DelegationTokenAuthDisabled(
    BrokerResponseError, errno=61, message="DELEGATION_TOKEN_AUTH_DISABLED"
):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFound(BrokerResponseError, errno=62, message="DELEGATION_TOKEN_NOT_FOUND"):
    """There is no such delegation token."""


class DelegationTokenOwnerMismatch(
    BrokerResponseError, errno=63, message="DELEGATION_TOKEN_OWNER_MISMATCH"
):
    """The delegation token is somebody else's."""


class DelegationTokenRequestNotAllowed(
    BrokerResponseError, errno=64, message="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
):
    """Delegation tokens are not given out over this connection."""


class DelegationTokenAuthorizationFailed(
    BrokerResponseError, errno=65, message="DELEGATION_TOKEN_AUTHORIZATION_FAILED"
):
    """Not authorised for delegation tokens."""


class DelegationTokenExpired(BrokerResponseError, errno=66, message="DELEGATION_TOKEN_EXPIRED"):
    """The delegation token has expired."""


class InvalidPrincipalType(BrokerResponseError, errno=67, message="INVALID_PRINCIPAL_TYPE"):
    """The principal's type is not supported."""


class FetchSessionIdNotFound(BrokerResponseError, errno=70, message="FETCH_SESSION_ID_NOT_FOUND"):
    """The broker has no such fetch session."""


class InvalidFetchSessionEpoch(
    BrokerResponseError, errno=71, message="INVALID_FETCH_SESSION_EPOCH"
):
    """The fetch session's epoch is not the next one."""


class ListenerNotFound(BrokerResponseError, errno=72, message="LISTENER_NOT_FOUND"):
    """The leader has no listener of this name."""


class MemberIdRequired(BrokerResponseError, errno=79, message="MEMBER_ID_REQUIRED"):
    """The group gave out a member id to join with."""


# aiokafka's second names for the same codes.
InvalidMessageError = CorruptRecordException
CoordinatorLoadInProgressError = GroupLoadInProgressError
CoordinatorNotAvailableError = GroupCoordinatorNotAvailableError
NotCoordinatorError = NotCoordinatorForGroupError
StaleLeaderEpochCodeError = NetworkException


def error_for_code(code: int) -> type[BrokerResponseError]:
    """Return the class for an error code; `UnknownError` for any code without one. Never raises."""
    return _BY_CODE.get(code, UnknownError)


for_code = error_for_code
kafka_errors: Final[Mapping[int, type[BrokerResponseError]]] = MappingProxyType(_BY_CODE)


def broker_error(
    code: int, *args: object, status: DeliveryStatus | None = None
) -> BrokerResponseError:
    """Return the error for a broker's code, which is kept in ``errno`` even if it has no class."""
    error = error_for_code(code)(*args, status=status)
    if error.errno != code:
        error.errno = code
    return error
