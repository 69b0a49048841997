"""Questions: every step but Produce, as the request it is and the place its answer goes to.

One function from a step to a `Question`; nothing is decided here and nothing is written. It is
apart from the Sender so that a new API is one entry, and apart from the engine, which needs no
schemas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from kio.static.protocol import RequestPayload

from aioidem import errors
from aioidem._engine import ProducerCore, steps
from aioidem._protocol import end_txn, txn_offset_commit
from aioidem._protocol.add_offsets import add_offsets_answer, add_offsets_request
from aioidem._protocol.add_partitions import add_partitions_answer, add_partitions_request
from aioidem._protocol.broker_config import broker_config_request, broker_facts
from aioidem._protocol.find_coordinator import coordinator_answer, coordinator_request
from aioidem._protocol.messages import decode_response, response_type
from aioidem._protocol.metadata import MetadataUpdate, metadata_request, metadata_update
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

__all__ = ["Question", "question"]

_FIRST_WITH_COORDINATOR_TYPES = 1


class Question(NamedTuple):
    """`make` builds the request in a version, `read` turns the answer into plain data, and `take`
    gives that to the engine, with the link, the token and the time.

    Two things are there for answers that grow with the cluster: `read_frame` reads the frame of an
    answer in a version where that is faster than by its schema, and `take_slowly` is `take` in
    pieces, with a clock in the place of the time; each yield is a place to let others run.
    """

    api_key: ApiKey
    make: Callable[[int], RequestPayload]
    read: Callable[[Any], Any]
    take: Callable[[int, int, Any, float], None]
    at_least: int = 0
    at_most: int | None = None
    read_frame: Callable[[int, bytes], Any] | None = None
    take_slowly: Callable[[int, int, Any, Callable[[], float]], Iterator[int]] | None = None

    def reader(self, version: int) -> Callable[[bytes], Any]:
        """What turns the frame of an answer in that version into plain data. It touches nothing
        else, so it may run in a thread.

        Raises:
            InternalError: there is no schema.
        """
        if self.read_frame is not None:
            return partial(self.read_frame, version)
        schema = response_type(self.api_key, version)
        if schema is None:
            raise errors.InternalError(f"no schema for {self.api_key.name} v{version}")
        return lambda frame: self.read(decode_response(schema, frame)[1])


def question(step: steps.Step, core: ProducerCore) -> Question:
    """What a step asks.

    Raises:
        InternalError: it asks nothing.
    """
    match step:
        case steps.FetchMetadata(_, _, topics, auto):
            return Question(
                ApiKey.METADATA,
                lambda version: metadata_request(version, topics, allow_auto_create=auto),
                metadata_update,
                core.on_metadata,
                read_frame=partial(read_metadata, wanted=frozenset(topics)),
                take_slowly=partial(_merge_slowly, core),
            )
        case steps.AskCluster():
            return Question(
                ApiKey.METADATA,
                lambda version: metadata_request(version, (), allow_auto_create=False),
                lambda response: metadata_update(response).cluster_id,
                core.on_cluster,
                read_frame=_read_cluster_id,
            )
        case steps.InitProducerId():
            return Question(
                ApiKey.INIT_PRODUCER_ID,
                producer_id_request,
                producer_id_answer,
                core.on_producer_id,
            )
        case steps.DescribeTopicConfig(_, _, topic):
            return Question(
                ApiKey.DESCRIBE_CONFIGS,
                lambda version: topic_config_request(version, topic),
                topic_config,
                core.on_topic_config,
            )
        case steps.DescribeTopicLimit(_, _, topic):
            return Question(
                ApiKey.DESCRIBE_CONFIGS,
                lambda version: topic_limit_request(version, topic),
                lambda response: topic_limit(response, core.config.compression_type),
                core.on_topic_limit,
            )
        case steps.DescribeBrokerConfig(_, _, node_id):
            return Question(
                ApiKey.DESCRIBE_CONFIGS,
                lambda version: broker_config_request(version, node_id),
                broker_facts,
                core.on_broker_config,
            )
        case steps.AskProducers(_, _, topic, partition):
            return Question(
                ApiKey.DESCRIBE_PRODUCERS,
                lambda _version: producers_request(topic, partition),
                lambda response: producers_answer(response, topic, partition),
                core.on_producers,
            )
        case steps.ReadBack(_, _, topic, topic_id, partition, offset):
            return Question(
                ApiKey.FETCH,
                lambda version: read_back_request(version, topic, topic_id, partition, offset),
                lambda response: read_back_answer(response, partition),
                core.on_read_back,
                at_most=READ_BACK_VERSION if topic_id is not None else READ_BACK_VERSION - 1,
            )
        case _:
            return _of_transactions(step, core)


def _read_cluster_id(version: int, frame: bytes) -> str | None:
    return read_metadata(version, frame, ()).cluster_id


def _merge_slowly(
    core: ProducerCore, link_id: int, token: int, update: MetadataUpdate, clock: Callable[[], float]
) -> Iterator[int]:
    merge = core.merge_of(link_id, token, update)
    if merge is not None:
        yield from merge.slices()
    core.on_metadata(link_id, token, update, clock(), merge)


def _of_transactions(step: steps.Step, core: ProducerCore) -> Question:
    match step:
        case steps.FindCoordinator(_, _, kind, key):
            return Question(
                ApiKey.FIND_COORDINATOR,
                lambda version: coordinator_request(version, key, kind),
                lambda response: coordinator_answer(response, key),
                core.on_coordination,
                at_least=_FIRST_WITH_COORDINATOR_TYPES,
            )
        case steps.InitTransactions(_, _, name, timeout_ms, existing):
            return Question(
                ApiKey.INIT_PRODUCER_ID,
                lambda version: transactional_producer_id_request(
                    version, name, timeout_ms, existing
                ),
                producer_id_answer,
                core.on_coordination,
                # Older ones cannot say who asks, and would let a fenced producer fence its heir.
                at_least=0 if existing is None else FIRST_WITH_IDENTITY,
            )
        case steps.AddPartitions(_, _, who, partitions):
            return Question(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                lambda version: add_partitions_request(version, who, partitions),
                add_partitions_answer,
                core.on_coordination,
            )
        case steps.AddOffsets(_, _, who, group_id):
            return Question(
                ApiKey.ADD_OFFSETS_TO_TXN,
                lambda version: add_offsets_request(version, who, group_id),
                add_offsets_answer,
                core.on_coordination,
            )
        case steps.CommitOffsets(_, _, who, group, offsets, v2):
            return Question(
                ApiKey.TXN_OFFSET_COMMIT,
                lambda version: txn_offset_commit.txn_offset_commit_request(
                    version, who, group, offsets
                ),
                txn_offset_commit.txn_offset_commit_answer,
                core.on_coordination,
                at_least=txn_offset_commit.FIRST_V2 if v2 else 0,
                at_most=None if v2 else txn_offset_commit.LAST_V1,
            )
        case steps.EndTransaction(_, _, who, commit, v2):
            return Question(
                ApiKey.END_TXN,
                lambda version: end_txn.end_txn_request(version, who, commit=commit),
                end_txn.end_txn_answer,
                core.on_coordination,
                at_least=end_txn.FIRST_V2 if v2 else 0,
                at_most=None if v2 else end_txn.LAST_V1,
            )
        case _:
            raise errors.InternalError(f"no way to perform {step!r}")
