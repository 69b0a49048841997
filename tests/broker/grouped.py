"""A group member that sends a request only when the test calls for that request."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from aioidem._broker.entities import Entity, from_ms
from aioidem._broker.virtual import VirtualClient, VirtualCluster

__all__ = ["MemberClient", "subscription"]


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata for the group leader: a ConsumerProtocolSubscription, v0."""
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class MemberClient:
    """A group member on a connection to its coordinator, with its member id and generation."""

    def __init__(
        self, cluster: VirtualCluster, instance: str | None = None, group: str = "g"
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.leader = ""
        self.members: tuple[Entity, ...] = ()
        self.protocols: Mapping[str, bytes] = {"range": subscription("t")}
        self.session_ms = 10_000
        self.rebalance_ms = 60_000
        self.protocol_type = "consumer"
        self.client: VirtualClient = self.connect()
        self.join_id = self.sync_id = 0

    def connect(self) -> VirtualClient:
        broker = self.cluster.state.coordinator_of(self.group)
        assert broker is not None
        self.client = self.cluster.client(broker.id)
        return self.client

    @property
    def leads(self) -> bool:
        return self.member_id == self.leader

    @property
    def place(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance,
        }

    # -- joining -----------------------------------------------------------------------------------

    def ask_to_join(self, version: int = 9, **changes: Any) -> None:
        """Send a JoinGroup, with `changes` to its fields."""
        request = self.place | {
            "session_timeout": from_ms(self.session_ms),
            "rebalance_timeout": from_ms(self.rebalance_ms),
            "protocol_type": self.protocol_type,
            "protocols": [
                {"name": name, "metadata": data} for name, data in self.protocols.items()
            ],
            **changes,
        }
        self.join_id = self.client.send(11, version, request)

    def joined(self) -> ErrorCode | None:
        """Return the error code of the answer to JoinGroup; None if no answer has come.

        The member id and the generation that the answer names become this client's own.
        """
        answer = self.client.answer(self.join_id)
        if answer is None:
            return None
        if answer.error_code in (ErrorCode.none, ErrorCode.member_id_required):
            self.member_id = answer.member_id
        if answer.error_code is ErrorCode.none:
            self.generation, self.leader = answer.generation_id, answer.leader
            self.members = answer.members
        return answer.error_code  # type: ignore[no-any-return]

    def begin(self, version: int = 9) -> ErrorCode | None:
        """Join as a new member; a dynamic member has to send JoinGroup twice for it (KIP-394)."""
        self.ask_to_join(version)
        if self.joined() is ErrorCode.member_id_required:
            self.ask_to_join(version)
        return self.joined()

    # -- syncing -----------------------------------------------------------------------------------

    def ask_to_sync(self, *assigned: MemberClient, version: int = 5, **changes: Any) -> None:
        """Send a SyncGroup that assigns to each member in `assigned` its index in `assigned`."""
        request = self.place | {
            "protocol_type": self.protocol_type,
            "protocol_name": next(iter(self.protocols)),
            "assignments": [
                {"member_id": each.member_id, "assignment": b"%d" % number}
                for number, each in enumerate(assigned)
            ],
            **changes,
        }
        self.sync_id = self.client.send(14, version, request)

    def synced(self) -> tuple[ErrorCode, bytes] | None:
        """Return the error code and assignment in SyncGroup's answer, or None if none came yet."""
        answer = self.client.answer(self.sync_id)
        return None if answer is None else (answer.error_code, bytes(answer.assignment))

    # -- staying, leaving, committing --------------------------------------------------------------

    def beat(self, **changes: Any) -> ErrorCode:
        return self.client.ask(12, 4, self.place | changes).error_code  # type: ignore[no-any-return]

    def leave(self, **changes: Any) -> ErrorCode:
        who = {"member_id": self.member_id, "group_instance_id": self.instance, "reason": None}
        answer = self.client.ask(13, 5, {"group_id": self.group, "members": [who | changes]})
        assert answer.error_code is ErrorCode.none
        return answer.members[0].error_code  # type: ignore[no-any-return]

    def commit(self, offset: int = 1, version: int = 9, **changes: Any) -> ErrorCode:
        part = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
        request = self.place | {
            "generation_id_or_member_epoch": self.generation,
            "topics": [{"name": "t", "partitions": [part]}],
            **changes,
        }
        answer = self.client.ask(8, version, request)
        return answer.topics[0].partitions[0].error_code  # type: ignore[no-any-return]

    def describe(self, version: int = 6) -> Entity:
        request = {"groups": [self.group], "include_authorized_operations": False}
        [group] = self.client.ask(15, version, request).groups
        return group
