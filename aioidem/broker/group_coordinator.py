"""What groups committed, within transactions (KIP-98, KIP-447) and without.

For readers with a manual assignment: nobody can join a group, so a group has members only if
`set_members` says so, for a client whose group metadata must be refused.

Invariants
    A transaction's offsets are pending until its marker; an abort forgets them.
    Of two commits the one that was asked for later stays, whenever its transaction ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from aioidem.broker.batch import RefusedError
from aioidem.broker.transaction import Identity

__all__ = ["Committed", "GroupCoordinator", "TopicPartition"]

TopicPartition: TypeAlias = tuple[str, int]
_FIRST_WITH_GROUP_NOT_FOUND = 9


class Committed(NamedTuple):
    """A committed offset; ``order`` counts all commits that were asked for."""

    offset: int
    leader_epoch: int
    metadata: str | None
    order: int = 0


class _Group:
    __slots__ = ("generation", "members", "offsets", "pending")

    def __init__(self) -> None:
        self.generation = 0
        self.members: dict[str, str | None] = {}
        self.offsets: dict[TopicPartition, Committed] = {}
        # By producer: what its open transaction commits.
        self.pending: dict[Identity, dict[TopicPartition, Committed]] = {}


class GroupCoordinator:
    """All groups of the cluster."""

    __slots__ = ("_groups", "_order")

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}
        self._order = count(1)

    def __repr__(self) -> str:
        return f"<GroupCoordinator groups={list(self._groups)}>"

    def set_members(
        self, group_id: str, generation: int, members: Mapping[str, str | None]
    ) -> None:
        """Let the group be at that generation, with these members (id -> instance id or None)."""
        group = self._groups.setdefault(group_id, _Group())
        group.generation = generation
        group.members = dict(members)

    def admit(
        self,
        group_id: str,
        generation: int,
        member_id: str,
        instance_id: str | None,
        *,
        offset_commit_version: int | None,
    ) -> None:
        """Refuse who may not commit for the group; a group nobody knows is made by the first.

        ``offset_commit_version``: None for a commit within a transaction. Raises `RefusedError`
        with ILLEGAL_GENERATION, GROUP_ID_NOT_FOUND, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID.
        """
        group = self._groups.get(group_id)
        if group is None:
            if generation >= 0:
                found_out = (offset_commit_version or 0) >= _FIRST_WITH_GROUP_NOT_FOUND
                code = ErrorCode.group_id_not_found if found_out else ErrorCode.illegal_generation
                raise RefusedError(code, f"no group {group_id!r}")
            self._groups[group_id] = _Group()
        elif generation < 0 and not group.members:
            return
        elif generation >= 0 or member_id or instance_id is not None:
            _check_member(group, member_id, instance_id)
            if generation != group.generation:
                raise RefusedError(
                    ErrorCode.illegal_generation, f"{generation}, not {group.generation}"
                )
        elif offset_commit_version is not None:
            raise RefusedError(ErrorCode.unknown_member_id, "the group has members")

    def commit(
        self,
        group_id: str,
        where: TopicPartition,
        offset: Committed,
        producer: Identity | None = None,
    ) -> None:
        """Remember an offset; with a producer, until its transaction ends, as pending."""
        group = self._groups.setdefault(group_id, _Group())
        offset = offset._replace(order=next(self._order))
        if producer is None:
            group.offsets[where] = offset
        else:
            group.pending.setdefault(producer, {})[where] = offset

    def in_transaction(self, group_id: str, producer: Identity) -> bool:
        """Whether the producer has a transaction open here: then nobody else is asked."""
        group = self._groups.get(group_id)
        return group is not None and producer in group.pending

    def end_transaction(self, group_id: str, producer_id: int, *, commit: bool) -> None:
        """The marker of that producer's transaction reached the group."""
        group = self._groups.get(group_id)
        if group is None:
            return
        for producer in [each for each in group.pending if each.producer_id == producer_id]:
            for where, offset in group.pending.pop(producer).items():
                known = group.offsets.get(where)
                if commit and (known is None or known.order < offset.order):
                    group.offsets[where] = offset

    def committed(self, group_id: str) -> Mapping[TopicPartition, Committed]:
        """By topic and partition; empty for a group nobody knows."""
        group = self._groups.get(group_id)
        return {} if group is None else group.offsets

    def unstable(self, group_id: str, where: TopicPartition) -> bool:
        """Whether an open transaction commits an offset there."""
        group = self._groups.get(group_id)
        return group is not None and any(where in each for each in group.pending.values())

    def forget_topic(self, name: str) -> None:
        """Its offsets go with it."""
        for group in self._groups.values():
            for offsets in (group.offsets, *group.pending.values()):
                for where in [each for each in offsets if each[0] == name]:
                    del offsets[where]


def _check_member(group: _Group, member_id: str, instance_id: str | None) -> None:
    if instance_id is not None:
        known = {i: m for m, i in group.members.items() if i is not None}.get(instance_id)
        if known is not None and known != member_id:
            raise RefusedError(ErrorCode.fenced_instance_id, f"{instance_id!r} is {known!r} now")
    if member_id not in group.members or (
        instance_id is not None and instance_id not in group.members.values()
    ):
        raise RefusedError(ErrorCode.unknown_member_id, f"no member {member_id!r}")
