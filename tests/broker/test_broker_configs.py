"""The embedded broker's DescribeConfigs and IncrementalAlterConfigs, and KIP-1269's configs."""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity
from aioidem._broker.virtual import VirtualClient, VirtualCluster, idempotent_batch
from aioidem.broker import RefusedError

RETAIN = "producer.state.batches.to.retain"
CLUSTER_RETAIN = "log.producer.state.batches.to.retain"
TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = range(4)
UNKNOWN_TO_BROKERS = "max.in.flight.sequence.number.per.connection"


def make(**options: Any) -> tuple[VirtualCluster, VirtualClient]:
    cluster = VirtualCluster(**options)
    cluster.state.topology.create_topic("t", partitions=1)
    return cluster, cluster.client()


def describe(
    client: VirtualClient, kind: int = TOPIC, name: str = "t", keys: list[str] | None = None
) -> Entity:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    values = {
        "resources": [resource],
        "include_synonyms": True,
        "include_documentation": True,
    }
    return client.ask(32, 4, values).results[0]


def value(client: VirtualClient, config: str, kind: int = TOPIC, name: str = "t") -> Any:
    """Return (value, source) of one config; None if the answer does not name it."""
    found = describe(client, kind, name, [config])
    assert found.error_code == ErrorCode.none
    return (found.configs[0].value, found.configs[0].config_source) if found.configs else None


def alter(
    client: VirtualClient,
    *changes: tuple[str, int, str | None],
    kind: int = TOPIC,
    name: str = "t",
    validate_only: bool = False,
) -> Entity:
    configs = [{"name": n, "config_operation": o, "value": v} for n, o, v in changes]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    values = {"resources": [resource], "validate_only": validate_only}
    return client.ask(44, 1, values).responses[0]


# -- KIP-1269 --------------------------------------------------------------------------------------


def test_kip_1269_default_and_minimum_of_the_config() -> None:
    """KIP-1269's topic config has the default 5, and lower values are INVALID_CONFIG."""
    _, client = make()
    (config,) = describe(client, keys=[RETAIN]).configs
    assert (config.value, config.config_type) == ("5", 3)
    for bad in ("4", "0", "-1", "x", "", "2147483648"):
        answer = alter(client, (RETAIN, SET, bad))
        assert answer.error_code == ErrorCode.invalid_config, bad
        assert RETAIN in answer.error_message
    assert value(client, RETAIN) == ("5", 5)
    assert alter(client, (RETAIN, SET, "5")).error_code == ErrorCode.none
    assert alter(client, (RETAIN, SET, "2147483647")).error_code == ErrorCode.none


def test_the_cluster_default_is_a_broker_config_that_a_topic_overrides() -> None:
    """A topic's own value of KIP-1269's config overrides the brokers' default."""
    cluster, client = make(retain=10)
    assert value(client, CLUSTER_RETAIN, BROKER, "0") == ("10", 2)
    assert value(client, RETAIN) == ("10", 2)
    alter(client, (RETAIN, SET, "20"))
    assert value(client, RETAIN) == ("20", 1)
    assert client.produce(idempotent_batch(0), version=14).producer_state_batches_to_retain == 20
    alter(client, (RETAIN, DELETE, None))
    assert client.produce(idempotent_batch(1), version=14).producer_state_batches_to_retain == 10
    assert cluster.state.topics["t"].overrides == {}


@pytest.mark.parametrize("retain", [4, 0, -1])
def test_a_broker_does_not_start_with_less_than_5(retain: int) -> None:
    """A cluster is refused if its brokers would retain fewer than 5 batches per producer."""
    with pytest.raises(RefusedError) as caught:
        VirtualCluster(retain=retain)
    assert caught.value.code == ErrorCode.invalid_config


def test_the_broker_config_has_the_same_minimum_and_may_differ_per_broker() -> None:
    """KIP-1269's broker config must be 5 or more, and each broker may have its own value."""
    cluster, client = make(brokers=2, retain={1: 30})
    answer = alter(client, (CLUSTER_RETAIN, SET, "4"), kind=BROKER, name="0")
    assert answer.error_code == ErrorCode.invalid_request
    assert (
        alter(client, (CLUSTER_RETAIN, SET, "7"), kind=BROKER, name="0").error_code
        == ErrorCode.none
    )
    topic = cluster.state.topics["t"]
    assert [topic.partitions[0].retain_on(b) for b in (0, 1)] == [7, 30]
    assert (
        alter(client, (CLUSTER_RETAIN, SET, "9"), kind=BROKER, name="").error_code == ErrorCode.none
    )
    assert [topic.partitions[0].retain_on(b) for b in (0, 1)] == [7, 30]
    alter(client, (CLUSTER_RETAIN, DELETE, None), kind=BROKER, name="0")
    assert [topic.partitions[0].retain_on(b) for b in (0, 1)] == [9, 30]


def test_an_old_broker_names_neither_config_even_where_a_new_one_set_it() -> None:
    """A broker without KIP-1269 leaves out that KIP's configs, even if a newer broker set them."""
    cluster, new = make(brokers=2, produce_versions={0: 14, 1: 13})
    alter(new, (RETAIN, SET, "20"))
    old_client = cluster.client(1)
    assert value(new, RETAIN) == ("20", 1)
    assert value(old_client, RETAIN) is None
    assert value(old_client, CLUSTER_RETAIN, BROKER, "1") is None
    named = {c.name for c in describe(old_client).configs}
    assert named == {c.name for c in describe(new).configs} - {RETAIN}


def test_an_old_broker_refuses_the_topic_config_as_unknown() -> None:
    """A broker without KIP-1269 refuses KIP-1269's topic config as an unknown config."""
    cluster, client = make(produce_versions=13)
    answer = alter(client, (RETAIN, SET, "20"))
    assert answer.error_code == ErrorCode.invalid_config
    assert answer.error_message == f"Unknown topic config name: {RETAIN}"
    with pytest.raises(RefusedError) as caught:
        cluster.state.topology.create_topic("n", configs={RETAIN: "20"}, retains=False)
    assert caught.value.code == ErrorCode.invalid_config


# -- describing ------------------------------------------------------------------------------------


def test_an_empty_list_of_keys_means_all() -> None:
    """DescribeConfigs with an empty list of keys returns all configs."""
    _, client = make()
    everything = describe(client).configs
    assert len(everything) > 5
    assert describe(client, keys=[]).configs == everything
    assert [c.name for c in describe(client, keys=["max.message.bytes", "nope"]).configs] == [
        "max.message.bytes"
    ]


def test_synonyms_go_from_the_topic_down_to_the_default() -> None:
    """DescribeConfigs lists a config's synonyms from the topic's own value down to the default."""
    _, client = make()
    alter(client, ("message.max.bytes", SET, "2000"), kind=BROKER, name="")
    alter(client, ("message.max.bytes", SET, "3000"), kind=BROKER, name="0")
    alter(client, ("max.message.bytes", SET, "1000"))
    (config,) = describe(client, keys=["max.message.bytes"]).configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("max.message.bytes", "1000", 1),
        ("message.max.bytes", "3000", 2),
        ("message.max.bytes", "2000", 3),
        ("message.max.bytes", "1048588", 5),
    ]
    assert config.documentation


def test_what_cannot_be_described() -> None:
    """DescribeConfigs refuses resources that do not exist, with the error codes of Kafka."""
    _, client = make()
    assert describe(client, TOPIC, "no").error_code == ErrorCode.unknown_topic_or_partition
    assert describe(client, TOPIC, "a b").error_code == ErrorCode.invalid_topic_exception
    assert describe(client, BROKER, "7").error_code == ErrorCode.invalid_request
    assert describe(client, 99, "x").error_code == ErrorCode.invalid_request


def test_unknown_broker_config_is_accepted_and_described_with_null() -> None:
    """A broker accepts a config with an unknown name, and describes it with null (Kafka 4.3.1).

    So an answer that describes KIP-758's config does not prove that the broker has that feature.
    """
    _, client = make()
    assert value(client, UNKNOWN_TO_BROKERS, BROKER, "0") is None
    assert (
        alter(client, (UNKNOWN_TO_BROKERS, SET, "7"), kind=BROKER, name="").error_code
        == ErrorCode.none
    )
    assert value(client, UNKNOWN_TO_BROKERS, BROKER, "0") == (None, 3)
    (config,) = describe(client, BROKER, "0", [UNKNOWN_TO_BROKERS]).configs
    assert config.is_sensitive


def test_the_clusters_defaults_are_described_without_what_is_not_set() -> None:
    """DescribeConfigs of the cluster-wide defaults returns only the configs that were set."""
    _, client = make()
    assert describe(client, BROKER, "").configs == ()
    alter(client, ("num.partitions", SET, "3"), kind=BROKER, name="")
    assert [c.name for c in describe(client, BROKER, "").configs] == ["num.partitions"]


# -- altering --------------------------------------------------------------------------------------


def test_all_changes_of_a_resource_or_none() -> None:
    """If IncrementalAlterConfigs refuses one change of a resource, it makes none of the others."""
    _, client = make()
    answer = alter(client, ("max.message.bytes", SET, "10"), ("no.such", SET, "1"))
    assert answer.error_code == ErrorCode.invalid_config
    assert value(client, "max.message.bytes") == ("1048588", 5)


def test_validate_only_changes_nothing() -> None:
    """IncrementalAlterConfigs with validate_only changes nothing."""
    _, client = make()
    assert (
        alter(client, ("max.message.bytes", SET, "10"), validate_only=True).error_code
        == ErrorCode.none
    )
    assert value(client, "max.message.bytes") == ("1048588", 5)


def test_lists_are_appended_to_and_subtracted_from() -> None:
    """APPEND adds a value to a list config unless the list has it, and SUBTRACT removes it."""
    _, client = make()
    policy = "cleanup.policy"
    for operation, item, after in (
        (APPEND, "compact", "delete,compact"),
        (APPEND, "compact", "delete,compact"),
        (SUBTRACT, "delete", "compact"),
    ):
        assert alter(client, (policy, operation, item)).error_code == ErrorCode.none
        assert value(client, policy) == (after, 1)
    assert alter(client, (policy, APPEND, "x")).error_code == ErrorCode.invalid_config


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ([("max.message.bytes", APPEND, "1")], ErrorCode.invalid_config),
        ([("max.message.bytes", 9, "1")], ErrorCode.unknown_server_error),
        ([("max.message.bytes", SET, None)], ErrorCode.invalid_request),
        ([("max.message.bytes", SET, "1"), ("max.message.bytes", SET, "2")], 42),
        ([("compression.type", SET, "zstd")], ErrorCode.invalid_config),
        ([("message.timestamp.type", SET, "Never")], ErrorCode.invalid_config),
    ],
)
def test_changes_that_cannot_be(changes: list[tuple[str, int, str | None]], code: int) -> None:
    """IncrementalAlterConfigs refuses invalid changes with the error codes of Kafka."""
    _, client = make()
    assert alter(client, *changes).error_code == code


def test_resources_that_cannot_be_altered() -> None:
    """IncrementalAlterConfigs refuses resources that do not exist."""
    _, client = make()
    change = ("max.message.bytes", SET, "1")
    unknown = ErrorCode.unknown_topic_or_partition
    assert alter(client, change, name="no").error_code == unknown
    assert alter(client, change, kind=BROKER, name="8").error_code == ErrorCode.invalid_request
    assert alter(client, change, kind=77).error_code == ErrorCode.invalid_request


def test_a_topic_takes_the_brokers_default_until_it_has_its_own() -> None:
    """A topic's ``max.message.bytes`` follows the broker's default until the topic has its own."""
    _, client = make()
    alter(client, ("message.max.bytes", SET, "100"), kind=BROKER, name="")
    big = idempotent_batch(0, value=b"x" * 200)
    assert client.produce(big).error_code == ErrorCode.message_too_large
    alter(client, ("max.message.bytes", SET, "1000"))
    assert client.produce(big).error_code == ErrorCode.none
