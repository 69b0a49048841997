"""Produce (v3 to v14): append record batches to partitions, and answer once they are replicated.

The checks are made in Kafka's order, because a client can notice it: topic, form of the batch,
acks, leadership, in-sync replicas, base offset, size, checksum, records and timestamps, and only
then producer epoch and sequence. A resend of a stored batch is therefore refused for its size or
timestamp before it is recognised as a duplicate. ``tests/broker/on_kafka/test_differential.py``
compares this order, and the other rules below, with Kafka.

If a transactional batch is the first of its transaction in a partition, the partition's leader asks
the transaction coordinator (see `transaction_support`) before it checks the batch against the log.

If a request names a partition twice, only the last batch counts.

With acks=all an answer waits until the high watermark has passed the batch, also if the batch is a
duplicate. If the leader of the partition changes meanwhile, the answer is NOT_LEADER_OR_FOLLOWER;
when the request's timeout has passed, it is REQUEST_TIMED_OUT. Both answers contain the base offset
of the appended batch.

Rejected
    Decoding every record: the batch header has the record count, timestamps and sequences. Records
    are decoded only for a compacted topic and for a refused timestamp.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import BatchHeader, RefusedError, check_crc
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import Entity, from_ms, respond, timestamp_from_ms
from aioidem._broker.partition import Partition, Replica
from aioidem._broker.requests import Context, Delayed, Later, Never, Now, ProduceItem, Reply
from aioidem._broker.topology import Broker
from aioidem._broker.transaction import Identity
from aioidem._broker.transaction_support import Support, admit
from aioidem._protocol.produce_v14 import tagged_retained
from aioidem._records import ReadRecord, read_batches
from aioidem.errors import ProtocolError, UnsupportedCodecError

__all__ = ["handle"]

_API: Final = 0
_NO_TIMESTAMP: Final = -1
_ZSTD: Final = 4
_FIRST_WITH_ZSTD: Final = 7
_FIRST_WITH_LEADER_HINTS: Final = 10
_FIRST_ABORTABLE: Final = 11
_FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_RETAINING: Final = 14


class _Outcome:
    """The outcome for one partition of a Produce request.

    ``awaited`` is the high watermark for which the answer waits (acks=all); -1: no wait.
    """

    __slots__ = (
        "awaited",
        "base_offset",
        "code",
        "item",
        "log_append_time_ms",
        "log_start_offset",
        "message",
        "partition",
        "record_errors",
    )

    def __init__(self, item: ProduceItem, partition: Partition | None) -> None:
        self.item = item
        self.partition = partition
        self.code = ErrorCode.none
        self.message: str | None = None
        self.record_errors: tuple[tuple[int, str | None], ...] = ()
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.log_start_offset = -1
        self.awaited = -1

    def refuse(self, refusal: RefusedError) -> None:
        self.code = refusal.code
        # Kafka sends an error message only for refused records and for an unreadable batch.
        if refusal.record_errors or (refusal.code is ErrorCode.corrupt_message and refusal.spoils):
            self.message = refusal.message
            self.record_errors = refusal.record_errors


class _DelayedProduce(Delayed):
    """A request with acks=all whose batches are appended and not committed yet."""

    __slots__ = ("_broker", "_cluster", "_context", "_outcomes")

    def __init__(
        self,
        cluster: Cluster,
        broker: Broker,
        outcomes: list[_Outcome],
        context: Context,
        timeout: float,
    ) -> None:
        waiting = {id(o.partition): o.partition for o in outcomes if o.partition is not None}
        super().__init__(tuple(waiting.values()), context.now + timeout)
        self._cluster = cluster
        self._broker = broker
        self._outcomes = outcomes
        self._context = context

    def attempt(self) -> Entity | None:
        for outcome in self._outcomes:
            _settle(outcome, self._broker)
        if any(o.awaited >= 0 for o in self._outcomes):
            return None
        return _response(self._cluster, self._broker, self._outcomes, self._context)

    def expire(self) -> Entity:
        for outcome in self._outcomes:
            if outcome.awaited >= 0:
                outcome.awaited = -1
                outcome.code = ErrorCode.request_timed_out
        return _response(self._cluster, self._broker, self._outcomes, self._context)


def handle(cluster: Cluster, broker: Broker, request: Entity, context: Context) -> Reply:
    """Append the batches that pass the checks.

    Returns:
        An answer at once for acks=1, one that waits for replication for acks=all, and none for
        acks=0.
    """
    items = _distinct(context.pending.items)
    spoiled = _spoiled(context.pending.items, request, context.api_version)
    if spoiled is None:
        outcomes = [_append(cluster, broker, item, request, context) for item in items]
    else:
        outcomes = [_Outcome(item, _find(cluster, item)) for item in items]
        for outcome in outcomes:
            outcome.refuse(spoiled)
    if request.acks == 0:
        return Never(close=any(o.code is not ErrorCode.none for o in outcomes))
    if request.acks == 1:
        for outcome in outcomes:
            outcome.awaited = -1
    parked = _DelayedProduce(cluster, broker, outcomes, context, request.timeout.total_seconds())
    response = parked.attempt()
    return Later(parked) if response is None else Now(response)


def _distinct(items: tuple[ProduceItem, ...]) -> list[ProduceItem]:
    if len(items) == 1:
        return list(items)
    return list({(item.topic_id or item.topic, item.index): item for item in items}.values())


def _spoiled(items: tuple[ProduceItem, ...], request: Entity, version: int) -> RefusedError | None:
    """Return the error that fails the whole request; None if there is none.

    Like Kafka, go through the batches up to the first transactional one. A corrupt batch among them
    fails the whole request.
    """
    for item in items:
        if item.refused is not None and item.refused.spoils:
            return item.refused
        if item.header is not None and item.header.transactional:
            if request.transactional_id is None:
                return RefusedError(
                    ErrorCode.transactional_id_authorization_failed, "there is none"
                )
            break
    if version < _FIRST_WITH_ZSTD and any(i.header and i.header.codec > _ZSTD for i in items):
        return RefusedError(ErrorCode.unknown_server_error, "looked for zstd, found no codec")
    return None


def _append(
    cluster: Cluster, broker: Broker, item: ProduceItem, request: Entity, context: Context
) -> _Outcome:
    outcome = _Outcome(item, _find(cluster, item))
    try:
        partition = _admitted(cluster, outcome, request, context)
        _store(cluster, partition, broker, item, request, context, outcome)
    except RefusedError as refusal:
        outcome.refuse(refusal)
    else:
        cluster.wake(partition)
    return outcome


def _admitted(cluster: Cluster, outcome: _Outcome, request: Entity, context: Context) -> Partition:
    """Return the batch's partition, after the checks that do not need the log.

    Raises:
        RefusedError: A check failed, or the interceptor, a test's hook, wants a refusal.
    """
    forced, item = context.pending.forced, outcome.item
    if forced is not None and forced.applies(item.topic, item.index):
        raise RefusedError(forced.code, "said so by the interceptor")
    if outcome.partition is not None:
        _check_request(item, request, context.api_version)
        return outcome.partition
    if (
        context.api_version >= _FIRST_WITH_TOPIC_IDS
        and item.topic_id not in cluster.topology.topics_by_id
    ):
        raise RefusedError(ErrorCode.unknown_topic_id, f"no topic has the id {item.topic_id}")
    raise RefusedError(ErrorCode.unknown_topic_or_partition, "no such topic or partition")


def _find(cluster: Cluster, item: ProduceItem) -> Partition | None:
    if item.topic_id is not None:
        topic = cluster.topology.topics_by_id.get(item.topic_id)
    else:
        topic = cluster.topics.get(item.topic or "")
    return topic.partition(item.index) if topic is not None else None


def _store(
    cluster: Cluster,
    partition: Partition,
    broker: Broker,
    item: ProduceItem,
    request: Entity,
    context: Context,
    outcome: _Outcome,
) -> None:
    header, data = item.header, item.data
    if header is None or data is None:
        raise item.refused or RefusedError(ErrorCode.invalid_record, "no batch")
    leader = partition.led_by(broker.id)
    if leader is None:
        raise RefusedError(ErrorCode.not_leader_or_follower, f"broker {broker.id} does not lead it")
    try:
        _ask_coordinator(cluster, partition, leader, header, request, context.api_version)
    except RefusedError as refusal:
        if refusal.code in (ErrorCode.invalid_txn_state, ErrorCode.not_enough_replicas):
            outcome.message = refusal.message
        raise
    # From here on the answer contains the log start offset, even if it has an error code. Only the
    # codes MESSAGE_TOO_LARGE and CORRUPT_MESSAGE come without the offset.
    outcome.log_start_offset = leader.log.start_offset
    if request.acks == -1 and len(partition.isr) < partition.least_in_sync:
        raise RefusedError(ErrorCode.not_enough_replicas, f"in sync: {partition.isr}")
    try:
        _check_batch(partition, header, data, context.wall_ms)
    except RefusedError as refusal:
        if refusal.code in (ErrorCode.message_too_large, ErrorCode.corrupt_message):
            outcome.log_start_offset = -1
        raise
    if not _is_duplicate(leader, header, outcome, broker.sequence_range):
        batch = partition.append(data, header, context.wall_ms)
        outcome.base_offset = batch.base_offset
        outcome.log_append_time_ms = batch.log_append_time_ms
        outcome.log_start_offset = leader.log.start_offset
        outcome.awaited = batch.last_offset + 1
    afterwards = context.pending.afterwards
    if afterwards is not None and afterwards.applies(item.topic, item.index):
        outcome.code = afterwards.code
        outcome.awaited = -1


def _ask_coordinator(
    cluster: Cluster,
    partition: Partition,
    leader: Replica,
    header: BatchHeader,
    request: Entity,
    version: int,
) -> None:
    """Ask the transaction coordinator about the first batch of a transaction in this partition.

    The coordinator is not asked if the transaction is open in the partition already.

    Raises:
        RefusedError: The producer epoch is too old, or the coordinator refuses or is unavailable.
    """
    if header.producer_id < 0 or not header.transactional:
        return
    if leader.producers.in_transaction(header):
        return
    support = Support.of(version, _FIRST_ABORTABLE)
    leader.producers.verifying(header, zero_first=support is Support.IMPLICIT)
    identity = Identity(header.producer_id, header.producer_epoch)
    admit(cluster, request.transactional_id, identity, partition, support)


def _is_duplicate(
    leader: Replica,
    header: BatchHeader,
    outcome: _Outcome,
    sequence_range: int | None,
) -> bool:
    """Return whether the batch is a duplicate; if so, fill the outcome from the stored batch.

    The answer then has the stored batch's base offset and, with LogAppendTime, its timestamp.
    """
    if header.producer_id < 0:
        return False
    original = leader.producers.check(header, sequence_range=sequence_range)
    if original is None:
        return False
    outcome.base_offset = original.base_offset
    outcome.log_append_time_ms = original.timestamp_ms
    outcome.awaited = original.last_offset + 1
    return True


def _check_request(item: ProduceItem, request: Entity, version: int) -> None:
    """Check what Kafka checks before it reads the log: the form of the batch, the codec, acks."""
    header = item.header
    if header is None:
        raise item.refused or RefusedError(ErrorCode.invalid_record, "no batch")
    if header.codec == _ZSTD and version < _FIRST_WITH_ZSTD:
        raise RefusedError(ErrorCode.unsupported_compression_type, "zstd needs Produce v7")
    if request.acks not in (-1, 0, 1):
        raise RefusedError(ErrorCode.invalid_required_acks, f"acks {request.acks}")


def _check_batch(
    partition: Partition, header: BatchHeader, data: bytes | memoryview, wall_ms: int
) -> None:
    if header.base_offset != 0:
        raise RefusedError(
            ErrorCode.invalid_record, f"The base offset should be 0, but is {header.base_offset}"
        )
    longest = partition.topic.settings.max_message_bytes
    if len(data) > longest:
        raise RefusedError(ErrorCode.message_too_large, f"{len(data)} bytes, at most {longest}")
    check_crc(data, header)
    if header.codec > _ZSTD:
        # An unknown codec raises an exception in Kafka, which answers UNKNOWN_SERVER_ERROR.
        raise RefusedError(ErrorCode.unknown_server_error, f"unknown codec {header.codec}")
    if header.record_count < 1 or header.last_offset_delta != header.record_count - 1:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"{header.record_count} records up to offset delta {header.last_offset_delta}",
        )
    if header.control:
        raise RefusedError(
            ErrorCode.invalid_record, "Clients are not allowed to write control records"
        )
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RefusedError(
            ErrorCode.invalid_record,
            f"producer {header.producer_id} with sequence {header.base_sequence}",
        )
    _check_records(partition, header, data, wall_ms)


def _check_records(
    partition: Partition, header: BatchHeader, data: bytes | memoryview, wall_ms: int
) -> None:
    settings = partition.topic.settings
    if not settings.log_append_time and header.max_timestamp_ms != _NO_TIMESTAMP:
        _check_timestamps(partition, header, data, wall_ms)
    elif header.log_append_time:
        raise RefusedError(
            ErrorCode.invalid_timestamp,
            "One or more records have been rejected due to invalid timestamp",
            tuple((i, "LogAppendTime is not the producer's") for i in range(header.record_count)),
        )
    if settings.compacted:
        without = [i for i, r in enumerate(_records(data)) if r.key is None]
        if without:
            raise RefusedError(
                ErrorCode.invalid_record,
                "One or more records have been rejected",
                tuple((i, "Compacted topic cannot accept message without key") for i in without),
            )


def _check_timestamps(
    partition: Partition, header: BatchHeader, data: bytes | memoryview, wall_ms: int
) -> None:
    settings = partition.topic.settings
    oldest = wall_ms - settings.timestamp_before_max_ms
    newest = wall_ms + settings.timestamp_after_max_ms
    # The header has only the first and the largest timestamp. To check the lower bound, the
    # timestamps of all records are read.
    if header.max_timestamp_ms <= newest and oldest < 0:
        return
    outside = [
        i
        for i, r in enumerate(_records(data))
        if r.timestamp_ms != _NO_TIMESTAMP and not oldest <= r.timestamp_ms <= newest
    ]
    if outside:
        raise RefusedError(
            ErrorCode.invalid_timestamp,
            "One or more records have been rejected due to invalid timestamp",
            tuple((i, "Timestamp is out of range") for i in outside),
        )


def _records(data: bytes | memoryview) -> list[ReadRecord]:
    try:
        return read_batches(data)[0].records()
    except ProtocolError as error:
        raise RefusedError(ErrorCode.corrupt_message, str(error)) from None
    except UnsupportedCodecError as error:  # Kafka has every codec
        raise RefusedError(ErrorCode.unsupported_compression_type, str(error)) from None


def _settle(outcome: _Outcome, broker: Broker) -> None:
    """Stop waiting if followers have the batch, or if its partition has moved or was deleted."""
    partition = outcome.partition
    if outcome.awaited < 0 or partition is None:
        return
    if partition.deleted:
        outcome.code = ErrorCode.unknown_topic_or_partition
    elif partition.leader != broker.id:
        outcome.code = ErrorCode.not_leader_or_follower
    elif partition.high_watermark < outcome.awaited:
        return
    elif len(partition.isr) < partition.least_in_sync:
        outcome.code = ErrorCode.not_enough_replicas_after_append
    outcome.awaited = -1


def _response(
    cluster: Cluster, broker: Broker, outcomes: list[_Outcome], context: Context
) -> Entity:
    version = context.api_version
    topics: dict[str | UUID | None, dict[str, Any]] = {}
    for outcome in outcomes:
        item = outcome.item
        key = item.topic if item.topic_id is None else item.topic_id
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = {
                "name": item.topic,
                "topic_id": item.topic_id,
                "partition_responses": [],
            }
        topic["partition_responses"].append(_partition_response(outcome, broker, version))
    values: dict[str, Any] = {
        "responses": topics.values(),
        "throttle_time": from_ms(round(broker.throttle * 1000)),
    }
    if version >= _FIRST_WITH_LEADER_HINTS:
        leaders = {
            o.partition.leader
            for o in outcomes
            if o.code == ErrorCode.not_leader_or_follower and o.partition is not None
        }
        if leaders:
            values["node_endpoints"] = [
                {"node_id": b.id, "host": b.host, "port": b.port, "rack": None}
                for b in cluster.running
                if b.id in leaders
            ]
    return respond(_API, version, values)


def _partition_response(outcome: _Outcome, broker: Broker, version: int) -> dict[str, Any]:
    partition = outcome.partition
    values: dict[str, Any] = {
        "index": outcome.item.index,
        "error_code": outcome.code,
        "base_offset": outcome.base_offset,
        "log_append_time": timestamp_from_ms(outcome.log_append_time_ms),
        "log_start_offset": outcome.log_start_offset,
        "record_errors": [
            {"batch_index": i, "batch_index_error_message": m} for i, m in outcome.record_errors
        ],
        "error_message": outcome.message,
    }
    if partition is None:
        return values
    if outcome.code == ErrorCode.none:
        if version >= _FIRST_RETAINING:
            values["producer_state_batches_to_retain"] = tagged_retained(
                partition.retain_on(broker.id), "partition"
            )
    elif outcome.code == ErrorCode.not_leader_or_follower and version >= _FIRST_WITH_LEADER_HINTS:
        values["current_leader"] = {
            "leader_id": partition.leader,
            "leader_epoch": partition.leader_epoch,
        }
    return values
