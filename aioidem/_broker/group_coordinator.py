"""All groups of the cluster: which exist, which clients may commit for them, and their offsets.

Kafka keeps this state in ``__consumer_offsets``. Here it belongs to the whole cluster: when another
broker becomes a group's coordinator, only the requests that wait at the old coordinator fail.
`Topology.coordinator_of` says which broker coordinates a group; `group_rebalance` decides how
members join and leave.

A group exists from its first commit or join on. Nothing expires, neither offsets nor groups.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.group import Group, GroupState
from aioidem._broker.group_member import Joining, Member
from aioidem._broker.group_offsets import Committed, TopicPartition
from aioidem._broker.schedule import Schedule
from aioidem._broker.timer import Timer
from aioidem._broker.transaction import Identity

__all__ = ["Committed", "GroupCoordinator", "TopicPartition"]

_FIRST_WITH_GROUP_NOT_FOUND = 9


class GroupCoordinator:
    """The groups of the whole cluster."""

    __slots__ = ("_groups", "_schedule")

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._groups: dict[str, Group] = {}

    def __repr__(self) -> str:
        return f"<GroupCoordinator groups={list(self._groups)}>"

    def find(self, group_id: str) -> Group | None:
        """Return a group; None if no client has joined it or committed for it."""
        return self._groups.get(group_id)

    def make(self, group_id: str) -> Group:
        """Return the group with this name; make it if it does not exist."""
        group = self._groups.get(group_id)
        if group is None:
            group = self._groups[group_id] = Group(group_id, self._schedule)
        return group

    def all(self) -> list[Group]:
        """Return all groups."""
        return list(self._groups.values())

    def delete(self, group_id: str) -> None:
        """Delete an empty group and its offsets.

        Raises:
            RefusedError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
        """
        group = self._known(group_id)
        if group.state is not GroupState.EMPTY:
            raise RefusedError(ErrorCode.non_empty_group, f"{group.state.value}")
        for member_id in list(group.given):
            group.take_back(member_id)
        group.step(GroupState.DEAD)
        del self._groups[group_id]

    def set_members(
        self, group_id: str, generation: int, members: Mapping[str, str | None]
    ) -> None:
        """Set the generation and members of a group, without clients for them.

        These members send no heartbeats, and their sessions never end.

        Args:
            group_id: Name of the group.
            generation: Its generation.
            members: Group instance id (None: a dynamic member) by member id.
        """
        group = self.make(group_id)
        for member_id in list(group.members):
            group.remove(member_id)
        for member_id, instance_id in members.items():
            asked = Joining(
                member_id,
                instance_id,
                client_id="",
                protocol_type="consumer",
                protocols=(("range", b""),),
                session=math.inf,
                rebalance=0.0,
                needs_known_id=False,
                may_skip=False,
            )
            group.add(Member(member_id, asked, Timer(self._schedule)), asked)
        if group.state is not GroupState.PREPARING:
            group.step(GroupState.PREPARING)
        group.begin_generation()
        if members:
            group.step(GroupState.STABLE)
        group.generation = generation

    # -- offsets -----------------------------------------------------------------------------------

    def admit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        *,
        offset_commit_version: int | None,
    ) -> Group:
        """Check whether a client may commit for a group; make the group if it does not exist.

        Args:
            group_id: Name of the group.
            generation: Generation in the request.
            member_id: Member id in the request.
            instance_id: Group instance id in the request.
            offset_commit_version: Version of OffsetCommit; None: a commit within a transaction.

        Raises:
            RefusedError: ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID,
                FENCED_INSTANCE_ID or, outside of transactions, REBALANCE_IN_PROGRESS.
        """
        transactional = offset_commit_version is None
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                found_out = (offset_commit_version or 0) >= _FIRST_WITH_GROUP_NOT_FOUND
                code = ErrorCode.group_id_not_found if found_out else ErrorCode.illegal_generation
                raise RefusedError(code, f"no group {group_id!r}")
            return self.make(group_id)
        if generation < 0 and group.state is GroupState.EMPTY:
            return group
        if generation >= 0 or member_id or instance_id is not None:
            group.member(member_id, instance_id)
            group.check_generation(generation)
        elif not transactional and group.state is not GroupState.EMPTY:
            raise RefusedError(ErrorCode.unknown_member_id, "the group has members")
        if not transactional and group.state is GroupState.COMPLETING:
            raise RefusedError(
                ErrorCode.rebalance_in_progress, "the new generation has no assignment yet"
            )
        return group

    def commit(
        self,
        group_id: str,
        where: TopicPartition,
        offset: Committed,
        producer: Identity | None = None,
    ) -> None:
        """Store an offset; if a producer commits it, it is pending until the transaction ends."""
        self.make(group_id).offsets.commit(where, offset, producer)

    def in_transaction(self, group_id: str, producer: Identity) -> bool:
        """Return whether a producer has pending offsets in the group, from its open transaction."""
        group = self._groups.get(group_id)
        return group is not None and producer in group.offsets.pending

    def end_transaction(self, group_id: str, producer_id: int, *, commit: bool) -> None:
        """Commit or drop a producer's pending offsets when its transaction's marker is written."""
        group = self._groups.get(group_id)
        if group is not None:
            group.offsets.end_transaction(producer_id, commit=commit)

    def committed(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """Return the committed offsets by topic and partition; empty for an unknown group."""
        group = self._groups.get(group_id)
        return {} if group is None else group.offsets.committed

    def unstable(self, group_id: str, where: TopicPartition) -> bool:
        """Return whether an open transaction commits an offset for this partition (KIP-447)."""
        group = self._groups.get(group_id)
        return group is not None and group.offsets.unstable(where)

    def losing_offsets(self, group_id: str) -> Group:
        """Return the group with this id, after a check that its offsets may be deleted.

        Raises:
            RefusedError: GROUP_ID_NOT_FOUND or NON_EMPTY_GROUP.
        """
        group = self._known(group_id)
        if not group.may_lose_offsets:
            raise RefusedError(ErrorCode.non_empty_group, f"{group.state.value}")
        return group

    def forget_topic(self, name: str) -> None:
        """Forget all offsets of a topic that was deleted."""
        for group in self._groups.values():
            group.offsets.forget_topic(name)

    def _known(self, group_id: str) -> Group:
        group = self._groups.get(group_id)
        if group is None:
            raise RefusedError(ErrorCode.group_id_not_found, f"no group {group_id!r}")
        return group
