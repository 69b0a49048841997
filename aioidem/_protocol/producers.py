"""DescribeProducers (KIP-664) for one partition: the producers that the answering replica knows.

Any replica answers, leader or not, and describes its log to the end, including batches that are not
committed. So the answer does not prove that a batch in doubt is stored; it only hints at the batch
with which to begin probing (resending batches in doubt to learn whether they are stored).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import throttle_ms

if TYPE_CHECKING:
    from kio.static.protocol import RequestPayload

__all__ = ["ProducersAnswer", "producers_answer", "producers_request"]


class ProducersAnswer(NamedTuple):
    """What a DescribeProducers answer says about one partition.

    `last_sequences` maps each producer id to its (producer epoch, last sequence). The sequence is
    as on the wire, modulo 2^31.
    """

    error_code: int
    last_sequences: dict[int, tuple[int, int]]
    throttle_ms: int = 0


def producers_request(topic: str, partition: int) -> RequestPayload:
    """Make a DescribeProducers request for one partition; the only version of it is v0."""
    # A producer asks only when batches are in doubt, so the schema is imported only then.
    from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest

    wanted: Any = TopicRequest(name=topic, partition_indexes=(partition,))  # type: ignore[arg-type]
    return DescribeProducersRequest(topics=(wanted,))


def producers_answer(response: Any, topic: str, partition: int) -> ProducersAnswer:
    """Read the answer for one partition; UNKNOWN_SERVER_ERROR if the answer lacks the partition."""
    for named in response.topics:
        for part in named.partitions:
            if named.name == topic and part.partition_index == partition:
                return ProducersAnswer(
                    int(part.error_code),
                    {
                        int(each.producer_id): (each.producer_epoch, each.last_sequence)
                        for each in part.active_producers
                    },
                    throttle_ms(response.throttle_time),
                )
    return ProducersAnswer(ErrorCode.unknown_server_error, {}, throttle_ms(response.throttle_time))
