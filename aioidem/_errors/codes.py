"""The exception classes for the error codes of Kafka's protocol, one class per code.

Where aiokafka has a class for the code, the name, ``retriable`` and ``invalid_metadata`` are
aiokafka's, so that code which moves from aiokafka changes only its imports and no ``except``
clause. For other codes they are Java's.

Invariants: a code has at most one class, found by `error_for_code`; a code without a class becomes
an `UnknownError` that keeps the code. ``retriable`` is for users and decides nothing in aioidem:
the module `classify` has a table of what the producer does about a code, and whether the batch may
be in the log.

Rejected: one generic class with a code (users cannot name a number in an ``except`` clause);
classes for codes that no producer can receive and that aiokafka does not have.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from aioidem._errors.local import AuthenticationFailedError, KafkaError
from aioidem.structs import DeliveryStatus

__all__ = [
    "BrokerNotAvailableError",
    "BrokerResponseError",
    "ClusterAuthorizationFailedError",
    "ConcurrentTransactions",
    "CorruptRecordException",
    "DelegationTokenAuthDisabled",
    "DelegationTokenAuthorizationFailed",
    "DelegationTokenExpired",
    "DelegationTokenNotFound",
    "DelegationTokenOwnerMismatch",
    "DelegationTokenRequestNotAllowed",
    "DuplicateSequenceNumber",
    "FencedInstanceId",
    "FencedLeaderEpoch",
    "FencedMemberEpoch",
    "FetchSessionIdNotFound",
    "GroupAuthorizationFailedError",
    "GroupCoordinatorNotAvailableError",
    "GroupIdNotFound",
    "GroupLoadInProgressError",
    "IllegalGenerationError",
    "IllegalSaslStateError",
    "InconsistentClusterId",
    "InconsistentGroupProtocolError",
    "InconsistentTopicId",
    "InvalidCommitOffsetSizeError",
    "InvalidConfigurationError",
    "InvalidFetchRequestError",
    "InvalidFetchSessionEpoch",
    "InvalidGroupIdError",
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
    "KafkaStorageError",
    "LeaderNotAvailableError",
    "ListenerNotFound",
    "LogDirNotFound",
    "MemberIdRequired",
    "MessageSizeTooLargeError",
    "NetworkException",
    "NoError",
    "NonEmptyGroup",
    "NotControllerError",
    "NotCoordinatorForGroupError",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotLeaderForPartitionError",
    "OffsetMetadataTooLargeError",
    "OffsetNotAvailable",
    "OffsetOutOfRangeError",
    "OperationNotAttempted",
    "OutOfOrderSequenceNumber",
    "PolicyViolationError",
    "ProducerFenced",
    "ReassignmentInProgress",
    "RebalanceInProgressError",
    "RebootstrapRequired",
    "RecordListTooLargeError",
    "ReplicaNotAvailableError",
    "RequestTimedOutError",
    "ResourceNotFound",
    "SaslAuthenticationFailed",
    "SecurityDisabled",
    "StaleControllerEpochError",
    "StaleMemberEpoch",
    "ThrottlingQuotaExceeded",
    "TopicAlreadyExistsError",
    "TopicAuthorizationFailedError",
    "TopicDeletionDisabled",
    "TransactionAbortable",
    "TransactionCoordinatorFenced",
    "TransactionalIdAuthorizationFailed",
    "TransactionalIdNotFound",
    "UnknownError",
    "UnknownLeaderEpoch",
    "UnknownMemberIdError",
    "UnknownProducerId",
    "UnknownTopicId",
    "UnknownTopicOrPartitionError",
    "UnstableOffsetCommit",
    "UnsupportedCompressionType",
    "UnsupportedForMessageFormatError",
    "UnsupportedSaslMechanismError",
    "UnsupportedVersionError",
    "broker_error",
    "error_for_code",
    "for_code",
    "kafka_errors",
]


class BrokerResponseError(KafkaError):
    """A broker answered with an error code.

    Attributes:
        errno: The code in the protocol. It differs from the class's ``errno`` only for
            `UnknownError`.
        message: The code's name in the protocol.
        description: The class's docstring.
    """

    errno: int = -1
    message: ClassVar[str] = "UNKNOWN"
    description: ClassVar[str] = ""

    def __init_subclass__(
        cls,
        *,
        errno: int | None = None,
        message: str = "",
        retriable: bool = False,
        invalid_metadata: bool = False,
        **kwargs: object,
    ) -> None:
        super().__init_subclass__(**kwargs)
        if errno is None:
            return  # a user's class: everything is its base class's
        if errno in _BY_CODE:
            raise TypeError(f"error code {errno} belongs to {_BY_CODE[errno].__name__} already")
        cls.errno = errno
        cls.message = message
        cls.description = cls.__doc__ or ""
        cls.retriable = retriable
        cls.invalid_metadata = invalid_metadata
        _BY_CODE[errno] = cls

    def __str__(self) -> str:
        """Return the text as aiokafka does, with ``[Error code]`` before the class and message."""
        return f"[Error {self.errno}] {super().__str__()}"


_BY_CODE: dict[int, type[BrokerResponseError]] = {}


class UnknownError(BrokerResponseError, errno=-1, message="UNKNOWN"):
    """The broker answered UNKNOWN_SERVER_ERROR, or a code that aioidem does not know.

    ``errno`` is the code.
    """

    def __str__(self) -> str:
        """Return the text, with a note if this version of aioidem does not know the code."""
        text = super().__str__()
        if self.errno == UnknownError.errno:
            return text
        return f"{text} (this version of aioidem knows no error code {self.errno})"


class OffsetOutOfRangeError(BrokerResponseError, errno=1, message="OFFSET_OUT_OF_RANGE"):
    """The requested offset is outside the log."""


class CorruptRecordException(BrokerResponseError, errno=2, message="CORRUPT_MESSAGE"):
    """The batch failed its CRC check or is malformed; it was not appended."""


class UnknownTopicOrPartitionError(
    BrokerResponseError,
    errno=3,
    message="UNKNOWN_TOPIC_OR_PARTITION",
    retriable=True,
    invalid_metadata=True,
):
    """The broker does not host this topic or partition."""


class InvalidFetchRequestError(BrokerResponseError, errno=4, message="INVALID_FETCH_SIZE"):
    """The requested fetch size is not possible."""


class LeaderNotAvailableError(
    BrokerResponseError,
    errno=5,
    message="LEADER_NOT_AVAILABLE",
    retriable=True,
    invalid_metadata=True,
):
    """The partition has no leader at present, for example during an election."""


class NotLeaderForPartitionError(
    BrokerResponseError,
    errno=6,
    message="NOT_LEADER_FOR_PARTITION",
    retriable=True,
    invalid_metadata=True,
):
    """The broker is not the partition's leader, or ceased to be before the batch was replicated."""


class RequestTimedOutError(
    BrokerResponseError, errno=7, message="REQUEST_TIMED_OUT", retriable=True
):
    """The replicas did not confirm the batch in time; it may be in the log."""


class BrokerNotAvailableError(BrokerResponseError, errno=8, message="BROKER_NOT_AVAILABLE"):
    """The broker is not available."""


class ReplicaNotAvailableError(BrokerResponseError, errno=9, message="REPLICA_NOT_AVAILABLE"):
    """The requested replica is not available."""


class MessageSizeTooLargeError(BrokerResponseError, errno=10, message="MESSAGE_SIZE_TOO_LARGE"):
    """A batch exceeds the topic's max.message.bytes, or a record exceeds max_request_size."""


class OffsetMetadataTooLargeError(
    BrokerResponseError, errno=12, message="OFFSET_METADATA_TOO_LARGE"
):
    """The metadata text of a committed offset is too long."""


class NetworkException(BrokerResponseError, errno=13, message="NETWORK_EXCEPTION", retriable=True):
    """The broker lost a connection that it needed for the answer."""


class GroupLoadInProgressError(
    BrokerResponseError, errno=14, message="COORDINATOR_LOAD_IN_PROGRESS", retriable=True
):
    """The coordinator is still loading and cannot answer yet."""


class GroupCoordinatorNotAvailableError(
    BrokerResponseError, errno=15, message="COORDINATOR_NOT_AVAILABLE", retriable=True
):
    """No coordinator is available at present."""


class NotCoordinatorForGroupError(
    BrokerResponseError, errno=16, message="NOT_COORDINATOR", retriable=True
):
    """This broker is not the coordinator of the group or transactional id."""


class InvalidTopicError(BrokerResponseError, errno=17, message="INVALID_TOPIC"):
    """The topic's name is illegal, or the topic is internal to Kafka."""


class RecordListTooLargeError(BrokerResponseError, errno=18, message="RECORD_LIST_TOO_LARGE"):
    """The batch is larger than a log segment."""


class NotEnoughReplicasError(
    BrokerResponseError, errno=19, message="NOT_ENOUGH_REPLICAS", retriable=True
):
    """Fewer replicas are in sync than min.insync.replicas; the batch was not appended."""


class NotEnoughReplicasAfterAppendError(
    BrokerResponseError, errno=20, message="NOT_ENOUGH_REPLICAS_AFTER_APPEND", retriable=True
):
    """The batch was appended, but then fewer replicas were in sync than min.insync.replicas."""


class InvalidRequiredAcksError(BrokerResponseError, errno=21, message="INVALID_REQUIRED_ACKS"):
    """The broker does not accept this value of acks."""


class IllegalGenerationError(BrokerResponseError, errno=22, message="ILLEGAL_GENERATION"):
    """The given generation is not the consumer group's present one."""


class InvalidGroupIdError(BrokerResponseError, errno=24, message="INVALID_GROUP_ID"):
    """The group id is illegal."""


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
    """The client is not authorised to use the topic."""


class GroupAuthorizationFailedError(
    BrokerResponseError, errno=30, message="GROUP_AUTHORIZATION_FAILED"
):
    """The client is not authorised to use the consumer group."""


class ClusterAuthorizationFailedError(
    BrokerResponseError, errno=31, message="CLUSTER_AUTHORIZATION_FAILED"
):
    """The client is not authorised to use the cluster."""


class InvalidTimestampError(BrokerResponseError, errno=32, message="INVALID_TIMESTAMP"):
    """A record's timestamp is outside the range that the topic accepts."""


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
    """A request was sent at a point where the SASL exchange does not allow it."""


class UnsupportedVersionError(BrokerResponseError, errno=35, message="UNSUPPORTED_VERSION"):
    """The broker does not support this version of the API."""


class TopicAlreadyExistsError(BrokerResponseError, errno=36, message="TOPIC_ALREADY_EXISTS"):
    """The topic to be created exists already."""


class InvalidPartitionsError(BrokerResponseError, errno=37, message="INVALID_PARTITIONS"):
    """The number of partitions is illegal."""


class InvalidReplicationFactorError(
    BrokerResponseError, errno=38, message="INVALID_REPLICATION_FACTOR"
):
    """The replication factor is illegal, or larger than the number of brokers."""


class InvalidReplicationAssignmentError(
    BrokerResponseError, errno=39, message="INVALID_REPLICATION_ASSIGNMENT"
):
    """The replica assignment is illegal."""


class InvalidConfigurationError(BrokerResponseError, errno=40, message="INVALID_CONFIG"):
    """A topic's or broker's configuration has an illegal value."""


class NotControllerError(BrokerResponseError, errno=41, message="NOT_CONTROLLER", retriable=True):
    """This broker is not the controller."""


class InvalidRequestError(BrokerResponseError, errno=42, message="INVALID_REQUEST"):
    """The request is malformed or contradicts itself."""


class UnsupportedForMessageFormatError(
    BrokerResponseError, errno=43, message="UNSUPPORTED_FOR_MESSAGE_FORMAT"
):
    """The topic's message format is too old for the request."""


class PolicyViolationError(BrokerResponseError, errno=44, message="POLICY_VIOLATION"):
    """A policy of the cluster forbids the request."""


class OutOfOrderSequenceNumber(
    BrokerResponseError, errno=45, message="OUT_OF_ORDER_SEQUENCE_NUMBER"
):
    """The batch's sequence number is not the next one that the broker expects (KIP-98)."""


class DuplicateSequenceNumber(BrokerResponseError, errno=46, message="DUPLICATE_SEQUENCE_NUMBER"):
    """The broker appended this batch before, and does not know its offset (KIP-98)."""


class InvalidProducerEpoch(BrokerResponseError, errno=47, message="INVALID_PRODUCER_EPOCH"):
    """The producer's epoch is older than the one that the broker knows (KIP-98)."""


class InvalidTxnState(BrokerResponseError, errno=48, message="INVALID_TXN_STATE"):
    """The transaction's state does not allow the request."""


class InvalidProducerIdMapping(
    BrokerResponseError, errno=49, message="INVALID_PRODUCER_ID_MAPPING"
):
    """The producer id does not belong to the transactional id."""


class InvalidTransactionTimeout(
    BrokerResponseError, errno=50, message="INVALID_TRANSACTION_TIMEOUT"
):
    """The transaction timeout exceeds the cluster's transaction.max.timeout.ms."""


class ConcurrentTransactions(BrokerResponseError, errno=51, message="CONCURRENT_TRANSACTIONS"):
    """The previous transaction of this transactional id is still being completed."""


class TransactionCoordinatorFenced(
    BrokerResponseError, errno=52, message="TRANSACTION_COORDINATOR_FENCED"
):
    """Another broker has become the transaction coordinator."""


class TransactionalIdAuthorizationFailed(
    BrokerResponseError, errno=53, message="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"
):
    """The client is not authorised to use the transactional id."""


class SecurityDisabled(BrokerResponseError, errno=54, message="SECURITY_DISABLED"):
    """The cluster has no security features turned on."""


class OperationNotAttempted(BrokerResponseError, errno=55, message="OPERATION_NOT_ATTEMPTED"):
    """The operation was not tried, because another partition of the request failed."""


class KafkaStorageError(
    BrokerResponseError,
    errno=56,
    message="KAFKA_STORAGE_ERROR",
    retriable=True,
    invalid_metadata=True,
):
    """The broker's disk failed; the batch may be in the log."""


class SaslAuthenticationFailed(
    BrokerResponseError, AuthenticationFailedError, errno=58, message="SASL_AUTHENTICATION_FAILED"
):
    """The broker rejected the credentials."""


class UnknownProducerId(BrokerResponseError, errno=59, message="UNKNOWN_PRODUCER_ID"):
    """The broker has no state for this producer id; brokers since 2.5 do not send this code."""


class NonEmptyGroup(BrokerResponseError, errno=68, message="NON_EMPTY_GROUP"):
    """The consumer group has members."""


class GroupIdNotFound(BrokerResponseError, errno=69, message="GROUP_ID_NOT_FOUND"):
    """The consumer group does not exist."""


class TopicDeletionDisabled(BrokerResponseError, errno=73, message="TOPIC_DELETION_DISABLED"):
    """The cluster does not allow topics to be deleted."""


class FencedLeaderEpoch(
    BrokerResponseError,
    errno=74,
    message="FENCED_LEADER_EPOCH",
    retriable=True,
    invalid_metadata=True,
):
    """The given leader epoch is older than the broker's."""


class UnknownLeaderEpoch(
    BrokerResponseError, errno=75, message="UNKNOWN_LEADER_EPOCH", retriable=True
):
    """The given leader epoch is newer than the broker's."""


class UnsupportedCompressionType(
    BrokerResponseError, errno=76, message="UNSUPPORTED_COMPRESSION_TYPE"
):
    """The broker does not support this codec."""


class OffsetNotAvailable(
    BrokerResponseError, errno=78, message="OFFSET_NOT_AVAILABLE", retriable=True
):
    """The leader does not know its high watermark yet."""


class FencedInstanceId(BrokerResponseError, errno=82, message="FENCED_INSTANCE_ID"):
    """Another consumer has joined the group with the same group.instance.id."""


class InvalidRecord(BrokerResponseError, errno=87, message="INVALID_RECORD"):
    """The broker refused at least one record of the batch (KIP-467).

    A compacted topic, for example, refuses records without a key.
    """


class UnstableOffsetCommit(
    BrokerResponseError, errno=88, message="UNSTABLE_OFFSET_COMMIT", retriable=True
):
    """A transaction that commits this offset is still open (KIP-447)."""


class ThrottlingQuotaExceeded(
    BrokerResponseError, errno=89, message="THROTTLING_QUOTA_EXCEEDED", retriable=True
):
    """A quota of the cluster is used up at present."""


class ProducerFenced(BrokerResponseError, errno=90, message="PRODUCER_FENCED"):
    """A newer producer uses this transactional id, or the transaction timed out."""


class ResourceNotFound(BrokerResponseError, errno=91, message="RESOURCE_NOT_FOUND"):
    """The resource does not exist."""


class UnknownTopicId(
    BrokerResponseError,
    errno=100,
    message="UNKNOWN_TOPIC_ID",
    retriable=True,
    invalid_metadata=True,
):
    """The broker hosts no topic with this id; the topic may have been deleted and recreated."""


class InconsistentTopicId(
    BrokerResponseError,
    errno=103,
    message="INCONSISTENT_TOPIC_ID",
    retriable=True,
    invalid_metadata=True,
):
    """The topic's id in the log differs from the given one."""


class InconsistentClusterId(BrokerResponseError, errno=104, message="INCONSISTENT_CLUSTER_ID"):
    """The broker belongs to another cluster."""


class TransactionalIdNotFound(BrokerResponseError, errno=105, message="TRANSACTIONAL_ID_NOT_FOUND"):
    """The transactional id does not exist."""


class FencedMemberEpoch(BrokerResponseError, errno=110, message="FENCED_MEMBER_EPOCH"):
    """The consumer group has removed the member, which must join again."""


class StaleMemberEpoch(BrokerResponseError, errno=113, message="STALE_MEMBER_EPOCH"):
    """The member's epoch is older than the group's."""


class TransactionAbortable(BrokerResponseError, errno=120, message="TRANSACTION_ABORTABLE"):
    """The transaction can only be aborted; the producer stays usable (KIP-890)."""


class RebootstrapRequired(BrokerResponseError, errno=129, message="REBOOTSTRAP_REQUIRED"):
    """The broker asks the client to start again from its bootstrap servers (KIP-1102)."""


# The codes below exist here only because aiokafka has classes for them: no producer receives them.


class NoError(BrokerResponseError, errno=0, message="NO_ERROR"):
    """The request succeeded."""


class StaleControllerEpochError(BrokerResponseError, errno=11, message="STALE_CONTROLLER_EPOCH"):
    """Another broker has become the controller."""


class InconsistentGroupProtocolError(
    BrokerResponseError, errno=23, message="INCONSISTENT_GROUP_PROTOCOL"
):
    """The member shares no assignment protocol with its group."""


class InvalidSessionTimeoutError(BrokerResponseError, errno=26, message="INVALID_SESSION_TIMEOUT"):
    """The session timeout is outside the range that the broker allows."""


class LogDirNotFound(BrokerResponseError, errno=57, message="LOG_DIR_NOT_FOUND"):
    """The log directory does not exist."""


class ReassignmentInProgress(BrokerResponseError, errno=60, message="REASSIGNMENT_IN_PROGRESS"):
    """The partition is being reassigned."""


class DelegationTokenAuthDisabled(
    BrokerResponseError, errno=61, message="DELEGATION_TOKEN_AUTH_DISABLED"
):
    """Delegation tokens are not enabled."""


class DelegationTokenNotFound(BrokerResponseError, errno=62, message="DELEGATION_TOKEN_NOT_FOUND"):
    """The delegation token does not exist."""


class DelegationTokenOwnerMismatch(
    BrokerResponseError, errno=63, message="DELEGATION_TOKEN_OWNER_MISMATCH"
):
    """The delegation token belongs to another principal."""


class DelegationTokenRequestNotAllowed(
    BrokerResponseError, errno=64, message="DELEGATION_TOKEN_REQUEST_NOT_ALLOWED"
):
    """Delegation tokens are not issued over this kind of connection."""


class DelegationTokenAuthorizationFailed(
    BrokerResponseError, errno=65, message="DELEGATION_TOKEN_AUTHORIZATION_FAILED"
):
    """The client is not authorised to use delegation tokens."""


class DelegationTokenExpired(BrokerResponseError, errno=66, message="DELEGATION_TOKEN_EXPIRED"):
    """The delegation token has expired."""


class InvalidPrincipalType(BrokerResponseError, errno=67, message="INVALID_PRINCIPAL_TYPE"):
    """The principal's type is not supported."""


class FetchSessionIdNotFound(BrokerResponseError, errno=70, message="FETCH_SESSION_ID_NOT_FOUND"):
    """The broker has no such fetch session."""


class InvalidFetchSessionEpoch(
    BrokerResponseError, errno=71, message="INVALID_FETCH_SESSION_EPOCH"
):
    """The fetch session's epoch is not the expected one."""


class ListenerNotFound(BrokerResponseError, errno=72, message="LISTENER_NOT_FOUND"):
    """The leader has no listener with this name."""


class MemberIdRequired(BrokerResponseError, errno=79, message="MEMBER_ID_REQUIRED"):
    """The member must join again with the member id that the group has issued."""


def error_for_code(code: int) -> type[BrokerResponseError]:
    """Return the class for an error code, or `UnknownError` for a code without a class."""
    return _BY_CODE.get(code, UnknownError)


for_code = error_for_code
kafka_errors: Final[Mapping[int, type[BrokerResponseError]]] = MappingProxyType(_BY_CODE)


def broker_error(
    code: int, *args: object, status: DeliveryStatus | None = None
) -> BrokerResponseError:
    """Return an exception for a broker's code, an `UnknownError` if the code has no class.

    The exception's ``errno`` is the code in either case.

    Args:
        code: The error code in the protocol.
        args: The exception's arguments, as a rule one message.
        status: NOT_WRITTEN or UNKNOWN if the error is a record's outcome; None if it is not.
    """
    error = error_for_code(code)(*args, status=status)
    if error.errno != code:
        error.errno = code
    return error
