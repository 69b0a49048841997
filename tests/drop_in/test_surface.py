"""The drop-in has aiokafka's public names and signatures; a new one in aiokafka fails a test."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from typing import Any

import aiokafka
import aiokafka.errors
import aiokafka.helpers
import aiokafka.producer.message_accumulator
import aiokafka.producer.producer
import aiokafka.structs
import pytest

import aioidem
from aioidem import abc, errors, helpers, integrations, partitioner, structs
from aioidem._aiokafka import AIOKafkaProducer, BatchBuilder, TransactionContext
from aioidem._aiokafka.options import OMITTED, MoreOptions
from aioidem._config.names import BY_KEYWORD
from aioidem._producer import metrics

THEIRS = aiokafka.AIOKafkaProducer
# Only this default differs. The default of `acks` is a marker object in both packages, and
# `same_default` takes the two markers for equal.
DIFFERENT_DEFAULTS = {"enable_idempotence": (False, OMITTED)}
OURS_ONLY = {"metrics_collector", "more"}  # the first comes with aiokafka's next release


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    return {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    }


def public(cls: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in vars(cls).items()
        if not name.startswith("_") or name in {"__aenter__", "__aexit__", "__del__"}
    }


def same_default(name: str, theirs: Any, ours: Any) -> bool:
    if name in DIFFERENT_DEFAULTS:
        return bool((theirs, ours) == DIFFERENT_DEFAULTS[name])
    if theirs is aiokafka.producer.producer._missing:  # noqa: SLF001 - it has no other name
        return ours is OMITTED
    if name == "partitioner":
        return type(theirs).__name__ == type(ours).__name__ == "DefaultPartitioner"
    return bool(theirs == ours)


def test_every_constructor_argument_is_there_with_its_default() -> None:
    theirs, ours = parameters(THEIRS.__init__), parameters(AIOKafkaProducer.__init__)
    assert set(ours) - set(theirs) <= OURS_ONLY
    assert set(theirs) <= set(ours)
    for name, parameter in theirs.items():
        assert ours[name].kind is parameter.kind is inspect.Parameter.KEYWORD_ONLY
        assert same_default(name, parameter.default, ours[name].default), name


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (THEIRS, AIOKafkaProducer),
        (aiokafka.producer.message_accumulator.BatchBuilder, BatchBuilder),
        (aiokafka.producer.producer.TransactionContext, TransactionContext),
        (aiokafka.abc.AbstractTokenProvider, abc.AbstractTokenProvider),
    ],
    ids=["AIOKafkaProducer", "BatchBuilder", "TransactionContext", "AbstractTokenProvider"],
)
def test_every_member_is_there_with_its_signature(theirs: type, ours: type) -> None:
    for name, member in public(theirs).items():
        assert hasattr(ours, name), name
        mine = inspect.getattr_static(ours, name)
        assert inspect.iscoroutinefunction(member) == inspect.iscoroutinefunction(mine), name
        assert getattr(member, "__isabstractmethod__", False) == getattr(
            mine, "__isabstractmethod__", False
        )
        if callable(member):
            asked, given = parameters(member), parameters(mine)
            assert list(asked) == list(given), name
            for each, parameter in asked.items():
                assert given[each].kind is parameter.kind, (name, each)
                lists = parameter.default == [] and given[each].default == ()
                assert lists or each == "_warnings" or given[each].default == parameter.default


def test_the_producer_has_no_public_member_that_aiokafka_has_not() -> None:
    attributes = {"client"}  # set in aiokafka's constructor
    added = {"metrics"}  # kafka-python's name, for what aiokafka's producer does not have
    assert set(public(AIOKafkaProducer)) - attributes - added == set(public(THEIRS))


def test_helpers_have_the_same_signature() -> None:
    asked = parameters(aiokafka.helpers.create_ssl_context)
    given = parameters(helpers.create_ssl_context)
    assert [(p.name, p.kind, p.default) for p in asked.values()] == [
        (p.name, p.kind, p.default) for p in given.values()
    ]


@pytest.mark.parametrize(
    "name", ["TopicPartition", "OffsetAndMetadata", "RecordMetadata", "BrokerMetadata"]
)
def test_structs_have_the_same_fields(name: str) -> None:
    ours, theirs = getattr(structs, name), getattr(aiokafka.structs, name)
    assert ours._fields == theirs._fields
    assert ours._field_defaults == theirs._field_defaults
    assert issubclass(ours, tuple)


def test_partition_metadata_has_the_same_fields() -> None:
    assert structs.PartitionMetadata._fields == aiokafka.structs.PartitionMetadata._fields


def exceptions(module: Any) -> dict[str, type[BaseException]]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }


def test_every_error_is_there_with_its_attributes() -> None:
    for name in sorted(exceptions(aiokafka.errors)):
        is_there_with_its_attributes(name)


def is_there_with_its_attributes(name: str) -> None:
    theirs, ours = exceptions(aiokafka.errors)[name], exceptions(errors).get(name)
    assert ours is not None
    assert issubclass(ours, errors.KafkaError)
    moved = name == "StaleLeaderEpochCodeError"  # since Kafka 0.9 code 13 is NETWORK_EXCEPTION
    for attribute in ("errno", "retriable", "invalid_metadata", "message"):
        if hasattr(theirs, attribute) and not moved:
            assert getattr(ours, attribute) == getattr(theirs, attribute), attribute
    if getattr(theirs, "description", ""):
        assert ours("x").description  # type: ignore[attr-defined]
    for base in theirs.__mro__[1:]:
        known = exceptions(errors).get(base.__name__)
        assert known is None or issubclass(ours, known), base


def test_codes_have_aiokafkas_classes_or_one_that_it_lacks() -> None:
    for code in (-1, *range(130)):
        theirs, ours = aiokafka.errors.for_code(code), errors.for_code(code)
        if theirs is not aiokafka.errors.UnknownError and code != 13:
            assert ours.__name__ == theirs.__name__, code


def test_imports_move_over_with_the_package_name() -> None:
    for module, names in {
        "": ["AIOKafkaProducer", "TopicPartition", "OffsetAndMetadata", "IllegalOperation"],
        "abc": ["AbstractTokenProvider"],
        "errors": ["KafkaError", "for_code", "kafka_errors"],
        "helpers": ["create_ssl_context"],
        "partitioner": ["DefaultPartitioner", "murmur2"],
        "producer": ["AIOKafkaProducer"],
        "producer.message_accumulator": ["BatchBuilder"],
        "producer.producer": ["AIOKafkaProducer", "TransactionContext", "_missing"],
        "structs": ["RecordMetadata", "TopicPartition", "OffsetAndMetadata", "PartitionMetadata"],
    }.items():
        for package in ("aiokafka", "aioidem"):
            loaded = importlib.import_module(f"{package}.{module}".rstrip("."))
            assert [name for name in names if not hasattr(loaded, name)] == []


def test_a_module_of_producers_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="AIOKafkaConsumer"):
        importlib.import_module("aioidem.producer").AIOKafkaConsumer  # noqa: B018


def test_the_default_partitioner_is_theirs() -> None:
    ours, theirs = partitioner.DefaultPartitioner(), aiokafka.partitioner.DefaultPartitioner()
    for key in (b"", b"a", b"abc", b"abcd", b"\xff" * 33):
        assert ours(key, [0, 1, 2, 3, 4], [1]) == theirs(key, [0, 1, 2, 3, 4], [1])
        assert partitioner.murmur2(key) & 0xFFFFFFFF == aiokafka.partitioner.murmur2(key)
    assert ours(None, [0, 1], [1]) == theirs(None, [0, 1], [1]) == 1


def test_every_option_of_the_configuration_has_an_argument() -> None:
    arguments = set(parameters(AIOKafkaProducer.__init__)) | set(MoreOptions.__annotations__)
    assert set(BY_KEYWORD) <= arguments
    assert not set(MoreOptions.__annotations__) - set(BY_KEYWORD)


def test_collectors_are_where_aiokafka_will_have_them() -> None:
    assert metrics.ProducerMetricsCollector is aioidem.ProducerMetricsCollector
    assert metrics.NullProducerMetricsCollector is aioidem.NullProducerMetricsCollector
    assert set(public(aioidem.ProducerMetricsCollector)) == {
        *("on_batch_dispatched", "on_batch_completed", "on_batch_failed", "on_buffer_wait")
    }


def test_nothing_of_the_library_imports_an_integration() -> None:
    loaded = {module.name for module in pkgutil.iter_modules(integrations.__path__)}
    # import-linter checks that nothing imports the integrations (layers in pyproject.toml). That
    # check would say nothing if there were no integration, so this test checks that there is one.
    assert "aiokafka" in loaded
