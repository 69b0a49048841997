"""Questions: how to make each request that the engine asks for, and how to read its answer.

The engine (`aioidem._engine`) does no IO. It describes each request as a step, a plain
object without a schema. For each kind of step but Produce there is one function here, which the
Sender calls. The functions decide nothing and do no IO.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aioidem import errors
from aioidem._engine import steps
from aioidem._protocol import end_txn, txn_offset_commit
from aioidem._protocol.add_offsets import add_offsets_answer, add_offsets_request
from aioidem._protocol.add_partitions import add_partitions_answer, add_partitions_request
from aioidem._protocol.broker_config import broker_config_request, broker_facts
from aioidem._protocol.find_coordinator import coordinator_answer, coordinator_request
from aioidem._protocol.messages import decode_response, response_type
from aioidem._protocol.metadata import metadata_request, metadata_update
from aioidem._protocol.metadata_reader import read_metadata
from aioidem._protocol.producer_id import (
    FIRST_WITH_IDENTITY,
    producer_id_answer,
    producer_id_request,
    transactional_producer_id_request,
)
from aioidem._protocol.producers import producers_answer, producers_request
from aioidem._protocol.read_back import MAX_VERSION as READ_BACK_VERSION
from aioidem._protocol.read_back import read_back_answer, read_back_request
from aioidem._protocol.topic_config import topic_config, topic_config_request
from aioidem._protocol.topic_limit import topic_limit, topic_limit_request
from aioidem._protocol.versions import ApiKey

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = [
    "Question",
    "add_offsets",
    "add_partitions",
    "cluster",
    "commit_offsets",
    "config_of_broker",
    "config_of_topic",
    "end_transaction",
    "find_coordinator",
    "init_transactions",
    "limit_of_topic",
    "metadata",
    "producer_id",
    "producers",
    "read_back",
]

_FIRST_WITH_COORDINATOR_TYPES = 1


class Question(NamedTuple):
    """How to make a request, and how to read its answer.

    `make` builds the request in a version, and `read` converts the decoded answer to plain data.
    `read_frame` is for answers that grow with the cluster: it reads the answer from the frame
    without a schema, which is faster. `at_least` and `at_most` limit the version of the request.
    """

    api_key: ApiKey
    make: Callable[[int], RequestPayload]
    read: Callable[[Any], Any]
    at_least: int = 0
    at_most: int | None = None
    read_frame: Callable[[int, bytes], Any] | None = None

    def reader(self, version: int) -> Callable[[bytes], Any]:
        """Return a function that converts an answer's frame, in this version, to plain data.

        The function changes nothing, so it may run in a thread.

        Raises:
            InternalError: The API has no schema in this version.
        """
        if self.read_frame is not None:
            return partial(self.read_frame, version)
        schema = response_type(self.api_key, version)
        if schema is None:
            raise errors.InternalError(f"no schema for {self.api_key.name} v{version}")
        return lambda frame: self.read(decode_response(schema, frame)[1])


def metadata(step: steps.FetchMetadata) -> Question:
    """Ask for the metadata of topics."""
    return Question(
        ApiKey.METADATA,
        lambda version: metadata_request(
            version, step.topics, allow_auto_create=step.allow_auto_create
        ),
        metadata_update,
        read_frame=partial(read_metadata, wanted=frozenset(step.topics)),
    )


def cluster() -> Question:
    """Ask which cluster a connection leads to."""
    return Question(
        ApiKey.METADATA,
        lambda version: metadata_request(version, (), allow_auto_create=False),
        lambda response: metadata_update(response).cluster_id,
        read_frame=_read_cluster_id,
    )


def _read_cluster_id(version: int, frame: bytes) -> str | None:
    return read_metadata(version, frame, ()).cluster_id


def producer_id() -> Question:
    """Ask for a producer id."""
    return Question(ApiKey.INIT_PRODUCER_ID, producer_id_request, producer_id_answer)


def config_of_topic(step: steps.DescribeTopicConfig) -> Question:
    """Ask whether a broker knows the topic config that comes with Produce v14 (KIP-1269)."""
    return Question(
        ApiKey.DESCRIBE_CONFIGS,
        lambda version: topic_config_request(version, step.topic),
        topic_config,
    )


def limit_of_topic(step: steps.DescribeTopicLimit, compression_type: str) -> Question:
    """Ask how large a batch of a topic may be if the producer compresses with this codec."""
    return Question(
        ApiKey.DESCRIBE_CONFIGS,
        lambda version: topic_limit_request(version, step.topic),
        lambda response: topic_limit(response, compression_type),
    )


def config_of_broker(step: steps.DescribeBrokerConfig) -> Question:
    """Ask a broker for its own configs."""
    return Question(
        ApiKey.DESCRIBE_CONFIGS,
        lambda version: broker_config_request(version, step.node_id),
        broker_facts,
    )


def producers(step: steps.AskProducers) -> Question:
    """Ask a leader what it knows of the producer ids of a partition."""
    return Question(
        ApiKey.DESCRIBE_PRODUCERS,
        lambda _version: producers_request(step.topic, step.partition),
        lambda response: producers_answer(response, step.topic, step.partition),
    )


def read_back(step: steps.ReadBack) -> Question:
    """Ask for committed batches of a partition, to learn whether those in doubt are stored."""
    return Question(
        ApiKey.FETCH,
        lambda version: read_back_request(
            version,
            step.topic,
            step.topic_id,
            step.partition,
            step.offset,
            leader_epoch=step.leader_epoch,
        ),
        lambda response: read_back_answer(response, step.partition),
        at_most=READ_BACK_VERSION if step.topic_id is not None else READ_BACK_VERSION - 1,
    )


def find_coordinator(step: steps.FindCoordinator) -> Question:
    """Ask which broker is the coordinator of a transactional id or a group."""
    return Question(
        ApiKey.FIND_COORDINATOR,
        lambda version: coordinator_request(version, step.key, step.kind),
        lambda response: coordinator_answer(response, step.key),
        at_least=_FIRST_WITH_COORDINATOR_TYPES,
    )


def init_transactions(step: steps.InitTransactions) -> Question:
    """Ask a coordinator for the producer id and epoch of a transactional id."""
    return Question(
        ApiKey.INIT_PRODUCER_ID,
        lambda version: transactional_producer_id_request(
            version, step.transactional_id, step.timeout_ms, step.existing
        ),
        producer_id_answer,
        # Older versions do not carry the producer's id and epoch, so a producer that was fenced
        # could fence its successor.
        at_least=0 if step.existing is None else FIRST_WITH_IDENTITY,
    )


def add_partitions(step: steps.AddPartitions) -> Question:
    """Ask to add partitions to the transaction."""
    return Question(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        lambda version: add_partitions_request(version, step.who, step.partitions),
        add_partitions_answer,
    )


def add_offsets(step: steps.AddOffsets) -> Question:
    """Ask to add a group's offsets to the transaction."""
    return Question(
        ApiKey.ADD_OFFSETS_TO_TXN,
        lambda version: add_offsets_request(version, step.who, step.group_id),
        add_offsets_answer,
    )


def commit_offsets(step: steps.CommitOffsets) -> Question:
    """Ask to commit a group's offsets with the transaction."""
    return Question(
        ApiKey.TXN_OFFSET_COMMIT,
        lambda version: txn_offset_commit.txn_offset_commit_request(
            version, step.who, step.group, step.offsets
        ),
        txn_offset_commit.txn_offset_commit_answer,
        at_least=txn_offset_commit.FIRST_V2 if step.v2 else 0,
        at_most=None if step.v2 else txn_offset_commit.LAST_V1,
    )


def end_transaction(step: steps.EndTransaction) -> Question:
    """Ask to commit or abort the transaction."""
    return Question(
        ApiKey.END_TXN,
        lambda version: end_txn.end_txn_request(version, step.who, commit=step.commit),
        end_txn.end_txn_answer,
        at_least=end_txn.FIRST_V2 if step.v2 else 0,
        at_most=None if step.v2 else end_txn.LAST_V1,
    )
