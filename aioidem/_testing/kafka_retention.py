"""Change the messages of a Kafka 4.3 broker so that the broker seems to implement KIP-1269; no IO.

A broker that is patched to remember more batches (`broker_patch`) does not announce their number. A
proxy with a `RetentionFace` announces the number as KIP-1269 specifies: ApiVersions responses offer
Produce v14; requests in v14 are passed on as v13 (the bodies are the same), and the responses get
the tagged field with the number; DescribeConfigs responses about a topic contain
``producer.state.batches.to.retain``.

Invariants
    Produce v14 is offered only for a broker whose newest version is v13.
    A message that cannot be read is passed on as it is.
    The number 5 is left out of Produce responses, because Kafka does not write default values.
    A topic without a number of its own has the default of the `RetentionFace`. Produce responses
    name topics by id; until a Metadata response has told which topic an id belongs to, the
    responses about that topic get no field.

Rejected
    Answering DescribeConfigs without the broker: its other values, errors and authorisation would
    have to be invented.
"""

from __future__ import annotations

import dataclasses
import importlib
import uuid
from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import build
from aioidem._protocol.messages import (
    decode_request,
    decode_response,
    encode_response,
    response_type,
)
from aioidem._protocol.produce_v14 import (
    DEFAULT_RETAINED,
    PartitionProduceResponseV14,
    ProduceResponseV14,
    TopicProduceResponseV14,
    tagged_retained,
)
from aioidem._protocol.topic_config import RETAIN_CONFIG
from aioidem._protocol.versions import ApiKey
from aioidem.errors import ConfigError, ProtocolError

__all__ = ["OFFERED_PRODUCE", "RetentionFace"]

OFFERED_PRODUCE: Final = 14
"""The Produce version that KIP-1269 adds."""

_FORWARDED: Final = OFFERED_PRODUCE - 1
_TOPIC: Final = 2
_INT: Final = 3
_FROM_TOPIC: Final = 1
_FROM_DEFAULT: Final = 5
_ANSWERS: Final = frozenset({ApiKey.METADATA, ApiKey.API_VERSIONS, ApiKey.DESCRIBE_CONFIGS})

Asked = frozenset[str]
"""The topics whose ``producer.state.batches.to.retain`` a DescribeConfigs request asks for."""


class RetentionFace:
    """How many batches per producer the brokers of one cluster retain, as proxies announce it.

    Several proxies may share one `RetentionFace`.

    Args:
        default: Number of batches for a topic without a number of its own.
        topics: Number of batches, by topic.

    Raises:
        ConfigError: A number is below 1 or above 2**31 - 1.
    """

    def __init__(
        self, default: int = DEFAULT_RETAINED, topics: Mapping[str, int] | None = None
    ) -> None:
        self._default = DEFAULT_RETAINED
        self._own: dict[str, int] = {}
        self._names: dict[uuid.UUID, str] = {}
        self.set(None, default)
        for topic, batches in (topics or {}).items():
            self.set(topic, batches)

    def __repr__(self) -> str:
        return f"<RetentionFace default={self._default} topics={self._own}>"

    def set(self, topic: str | None, batches: int) -> None:
        """Change a topic's number of batches, or with None that of topics without their own number.

        Numbers below 5 are accepted here, though a broker refuses them: clients must tolerate them.

        Raises:
            ConfigError: The number is below 1 or above 2**31 - 1.
        """
        if not 1 <= batches < 1 << 31:
            raise ConfigError(f"{RETAIN_CONFIG}={batches}: it must be 1 or more")
        if topic is None:
            self._default = batches
        else:
            self._own[topic] = batches

    def retained(self, topic: str) -> int:
        """Return the announced number of batches of a topic."""
        return self._own.get(topic, self._default)

    def learn(self, topic: str, topic_id: uuid.UUID) -> None:
        """Record the id of a topic, because Produce responses name topics by id."""
        self._names[topic_id] = topic

    # -- requests ----------------------------------------------------------------------------------

    def forwarded_version(self, api_key: int, version: int) -> int:
        """Return the version in which a client's request is passed on to the broker."""
        v14 = (api_key, version) == (ApiKey.PRODUCE, OFFERED_PRODUCE)
        return _FORWARDED if v14 else version

    def reads_request(self, api_key: int) -> bool:
        """Return whether requests of this API must be passed to `request`."""
        return api_key == ApiKey.DESCRIBE_CONFIGS

    def request(self, payload: bytes) -> Asked:
        """Return the topics of a DescribeConfigs request whose configs `response` must change."""
        try:
            _, request = decode_request(payload)
        except ProtocolError:
            return Asked()
        resources: Any = getattr(request, "resources", ())
        return Asked(
            each.resource_name
            for each in resources
            if each.resource_type == _TOPIC
            # None or an empty list asks for all configs.
            and (not each.configuration_keys or RETAIN_CONFIG in each.configuration_keys)
        )

    # -- answers -----------------------------------------------------------------------------------

    def reads_response(self, api_key: int, version: int) -> bool:
        """Return whether responses of this API and version must be passed to `response`."""
        return api_key in _ANSWERS or (api_key, version) == (ApiKey.PRODUCE, OFFERED_PRODUCE)

    def response(self, api_key: int, version: int, payload: bytes, asked: Asked) -> bytes:
        """Return a response as a broker with KIP-1269 would send it, made from a broker's response.

        Args:
            api_key: API of the request.
            version: Version in which the client sent the request.
            payload: The response, without its length.
            asked: What `request` returned for a DescribeConfigs request.
        """
        try:
            return self._response(api_key, version, payload, asked)
        except ProtocolError:
            return payload

    def _response(self, api_key: int, version: int, payload: bytes, asked: Asked) -> bytes:
        spoken = self.forwarded_version(api_key, version)
        if api_key == ApiKey.API_VERSIONS and _error(payload) == ErrorCode.unsupported_version:
            spoken = 0
        schema: Any = response_type(api_key, spoken)
        if schema is None:
            return payload
        correlation_id, answer = decode_response(schema, payload)
        match api_key:
            case ApiKey.METADATA:
                self._learn(answer)
                return payload
            case ApiKey.API_VERSIONS:
                changed = _offering(answer)
            case ApiKey.DESCRIBE_CONFIGS:
                changed = self._describing(answer, asked)
            case _:
                changed = self._tagged(answer)
        return encode_response(changed, correlation_id)[4:]

    def _learn(self, metadata: Any) -> None:
        for topic in metadata.topics:
            topic_id = getattr(topic, "topic_id", None)
            if topic_id is not None and topic.name is not None:
                self._names[topic_id] = topic.name

    def _describing(self, answer: Any, asked: Asked) -> Any:
        return dataclasses.replace(
            answer, results=tuple(self._described(each, asked) for each in answer.results)
        )

    def _described(self, result: Any, asked: Asked) -> Any:
        topic = result.resource_name
        if (
            result.resource_type != _TOPIC
            or topic not in asked
            or result.error_code != ErrorCode.none
        ):
            return result
        module = importlib.import_module(type(result).__module__)
        config = build(
            module.DescribeConfigsResourceResult,
            {
                "name": RETAIN_CONFIG,
                "value": str(self.retained(topic)),
                "read_only": False,
                "config_source": _FROM_TOPIC if topic in self._own else _FROM_DEFAULT,
                "is_default": topic not in self._own,
                "is_sensitive": False,
                "synonyms": (),
                "config_type": _INT,
                "documentation": None,
            },
        )
        others = tuple(each for each in result.configs if each.name != RETAIN_CONFIG)
        return dataclasses.replace(result, configs=(*others, config))

    def _tagged(self, answer: Any) -> ProduceResponseV14:
        values = _values(answer)
        values["responses"] = tuple(self._tagged_topic(each) for each in answer.responses)
        return ProduceResponseV14(**values)

    def _tagged_topic(self, topic: Any) -> TopicProduceResponseV14:
        name = self._names.get(topic.topic_id)
        batches = DEFAULT_RETAINED if name is None else self.retained(name)
        values = _values(topic)
        values["partition_responses"] = tuple(
            _tagged_partition(each, batches) for each in topic.partition_responses
        )
        return TopicProduceResponseV14(
            **values, producer_state_batches_to_retain=tagged_retained(batches, "topic")
        )


def _tagged_partition(partition: Any, batches: int) -> PartitionProduceResponseV14:
    stored = partition.error_code == ErrorCode.none
    return PartitionProduceResponseV14(
        **_values(partition),
        producer_state_batches_to_retain=(
            tagged_retained(batches, "partition") if stored else None
        ),
    )


def _offering(answer: Any) -> Any:
    """Return the ApiVersions response; it offers Produce v14 if the broker's newest is v13."""
    keys = tuple(
        dataclasses.replace(each, max_version=OFFERED_PRODUCE)
        if each.api_key == ApiKey.PRODUCE and each.max_version == _FORWARDED
        else each
        for each in answer.api_keys
    )
    return dataclasses.replace(answer, api_keys=keys)


def _values(entity: Any) -> dict[str, Any]:
    """Return the fields of an entity by name; nested entities are not converted."""
    return {each.name: getattr(entity, each.name) for each in dataclasses.fields(entity)}


def _error(payload: bytes) -> int:
    return int.from_bytes(payload[4:6], "big", signed=True)
