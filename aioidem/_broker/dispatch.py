"""Which APIs the brokers serve, in which versions, and which handler serves each.

The versions are those of Kafka 4.3.1 for which kio has a schema; the highest Produce version is set
per broker. Produce is announced from version 0 on, as real brokers do because librdkafka looks for
it (KAFKA-18659), though only versions 3 and up are served.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from aioidem._broker import (
    api_00_produce,
    api_01_fetch,
    api_02_list_offsets,
    api_03_metadata,
    api_08_offset_commit,
    api_09_offset_fetch,
    api_10_find_coordinator,
    api_11_join_group,
    api_12_heartbeat,
    api_13_leave_group,
    api_14_sync_group,
    api_15_describe_groups,
    api_16_list_groups,
    api_17_sasl_handshake,
    api_18_api_versions,
    api_19_create_topics,
    api_20_delete_topics,
    api_21_delete_records,
    api_22_init_producer_id,
    api_23_offset_for_leader_epoch,
    api_24_add_partitions_to_txn,
    api_25_add_offsets_to_txn,
    api_26_end_txn,
    api_28_txn_offset_commit,
    api_32_describe_configs,
    api_36_sasl_authenticate,
    api_42_delete_groups,
    api_44_incremental_alter_configs,
    api_47_offset_delete,
    api_60_describe_cluster,
    api_61_describe_producers,
    api_66_list_transactions,
)
from aioidem._broker.entities import Entity
from aioidem._broker.requests import Context, Reply

if TYPE_CHECKING:
    from aioidem._broker.state import ClusterState
    from aioidem._broker.topology import Broker

__all__ = ["APIS", "Api", "announced", "handler", "served"]

Handler: TypeAlias = "Callable[[ClusterState, Broker, Entity, Context], Reply]"


@dataclass(frozen=True, slots=True)
class Api:
    """A handler, and the first and last version that it serves."""

    handle: Handler
    first: int
    last: int


APIS: Final[Mapping[int, Api]] = {
    0: Api(api_00_produce.handle, 3, 14),
    1: Api(api_01_fetch.handle, 4, 18),
    2: Api(api_02_list_offsets.handle, 1, 11),
    3: Api(api_03_metadata.handle, 0, 13),
    8: Api(api_08_offset_commit.handle, 2, 10),
    9: Api(api_09_offset_fetch.handle, 1, 10),
    10: Api(api_10_find_coordinator.handle, 0, 6),
    11: Api(api_11_join_group.handle, 0, 9),
    12: Api(api_12_heartbeat.handle, 0, 4),
    13: Api(api_13_leave_group.handle, 0, 5),
    14: Api(api_14_sync_group.handle, 0, 5),
    15: Api(api_15_describe_groups.handle, 0, 6),
    16: Api(api_16_list_groups.handle, 0, 5),
    17: Api(api_17_sasl_handshake.handle, 1, 1),
    18: Api(api_18_api_versions.handle, 0, 4),
    19: Api(api_19_create_topics.handle, 2, 7),
    20: Api(api_20_delete_topics.handle, 1, 6),
    21: Api(api_21_delete_records.handle, 0, 2),
    22: Api(api_22_init_producer_id.handle, 0, 5),
    23: Api(api_23_offset_for_leader_epoch.handle, 2, 4),
    24: Api(api_24_add_partitions_to_txn.handle, 0, 3),
    25: Api(api_25_add_offsets_to_txn.handle, 0, 4),
    26: Api(api_26_end_txn.handle, 0, 5),
    28: Api(api_28_txn_offset_commit.handle, 0, 5),
    32: Api(api_32_describe_configs.handle, 1, 4),
    36: Api(api_36_sasl_authenticate.handle, 0, 2),
    42: Api(api_42_delete_groups.handle, 0, 2),
    44: Api(api_44_incremental_alter_configs.handle, 0, 1),
    47: Api(api_47_offset_delete.handle, 0, 0),
    60: Api(api_60_describe_cluster.handle, 0, 2),
    61: Api(api_61_describe_producers.handle, 0, 0),
    66: Api(api_66_list_transactions.handle, 0, 2),
}


def handler(api_key: int) -> Handler:
    """Return the handler of an API.

    Raises:
        KeyError: The API is not served.
    """
    return APIS[api_key].handle


def served(broker: Broker, api_key: int, version: int) -> bool:
    """Return whether a broker answers this version of an API."""
    api = APIS.get(api_key)
    if api is None:
        return False
    last = min(api.last, broker.produce_version) if api_key == 0 else api.last
    return api.first <= version <= last


def announced(broker: Broker) -> list[tuple[int, int, int]]:
    """Return (API key, first version, last version) of each API that ApiVersions lists."""
    return [
        (key, 0, min(api.last, broker.produce_version)) if key == 0 else (key, api.first, api.last)
        for key, api in APIS.items()
    ]
