"""DescribeProducers (KIP-664) for one partition: what the answering replica knows of producers.

Any replica answers, whether it leads or not, and it tells of its log's end, not of what is
committed. So the answer is a hint where to look, never a verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.static.protocol import RequestPayload

from aioidem._protocol.messages import throttle_ms

__all__ = ["ProducersAnswer", "producers_answer", "producers_request"]


@dataclass(frozen=True, slots=True)
class ProducersAnswer:
    """`last_sequences`: producer id -> (epoch, last sequence on the wire)."""

    error_code: int
    last_sequences: dict[int, tuple[int, int]]
    throttle_ms: int = 0


def producers_request(topic: str, partition: int) -> RequestPayload:
    """Ask about one partition. There is only v0."""
    wanted: Any = TopicRequest(name=topic, partition_indexes=(partition,))  # type: ignore[arg-type]
    return DescribeProducersRequest(topics=(wanted,))


def producers_answer(response: Any, topic: str, partition: int) -> ProducersAnswer:
    """What it says of that partition; an answer without it counts as UNKNOWN_SERVER_ERROR."""
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
    return ProducersAnswer(-1, {}, throttle_ms(response.throttle_time))
