"""The function that serves each API, by API key; `versions` says which versions are served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

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
from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import Entity
from aioidem._broker.requests import Context, Reply
from aioidem._broker.topology import Broker

__all__ = ["HANDLERS", "Handler"]

Handler: TypeAlias = Callable[[Cluster, Broker, Entity, Context], Reply]

HANDLERS: Final[Mapping[int, Handler]] = {
    0: api_00_produce.handle,
    1: api_01_fetch.handle,
    2: api_02_list_offsets.handle,
    3: api_03_metadata.handle,
    8: api_08_offset_commit.handle,
    9: api_09_offset_fetch.handle,
    10: api_10_find_coordinator.handle,
    11: api_11_join_group.handle,
    12: api_12_heartbeat.handle,
    13: api_13_leave_group.handle,
    14: api_14_sync_group.handle,
    15: api_15_describe_groups.handle,
    16: api_16_list_groups.handle,
    17: api_17_sasl_handshake.handle,
    18: api_18_api_versions.handle,
    19: api_19_create_topics.handle,
    20: api_20_delete_topics.handle,
    21: api_21_delete_records.handle,
    22: api_22_init_producer_id.handle,
    23: api_23_offset_for_leader_epoch.handle,
    24: api_24_add_partitions_to_txn.handle,
    25: api_25_add_offsets_to_txn.handle,
    26: api_26_end_txn.handle,
    28: api_28_txn_offset_commit.handle,
    32: api_32_describe_configs.handle,
    36: api_36_sasl_authenticate.handle,
    42: api_42_delete_groups.handle,
    44: api_44_incremental_alter_configs.handle,
    47: api_47_offset_delete.handle,
    60: api_60_describe_cluster.handle,
    61: api_61_describe_producers.handle,
    66: api_66_list_transactions.handle,
}
"""The handlers by API key."""
