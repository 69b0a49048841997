"""One consumer group of the classic protocol: its members, its generation, its common protocol.

It is modelled on Kafka 4.3.1. A `Group` is the state at one moment; `group_rebalance` decides when
the state changes and which member is answered.

Invariants
    The state changes only through `Group.step`, by the table `_NEXT`.
    The leader, if there is one, is a member; an instance id names one member at most (KIP-345).
    Every member speaks ``protocol_type``, and all of them share at least one protocol.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from enum import Enum
from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.group_member import Joining, Member
from aioidem._broker.group_offsets import GroupOffsets
from aioidem._broker.schedule import Schedule
from aioidem._broker.timer import Timer

__all__ = ["Group", "GroupState"]

_CONSUMER: Final = "consumer"


class GroupState(Enum):
    """The states of a group, with the names that DescribeGroups uses."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState
_NEXT: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    _S.EMPTY: frozenset({_S.PREPARING, _S.DEAD}),
    # When the round of JoinGroup is over, the group waits for the leader's assignment (COMPLETING),
    # or is EMPTY if no member is left.
    _S.PREPARING: frozenset({_S.COMPLETING, _S.EMPTY, _S.DEAD}),
    _S.COMPLETING: frozenset({_S.STABLE, _S.PREPARING, _S.DEAD}),
    _S.STABLE: frozenset({_S.PREPARING, _S.DEAD}),
    _S.DEAD: frozenset(),
}


class Group:
    """A group, as its coordinator remembers it.

    Attributes:
        is_first: Whether the rebalance in preparation is the first one after the group was empty.
            Such a rebalance waits ``group.initial.rebalance.delay.ms`` for further members.
        grew: Whether a member joined during that delay, which is then extended.
        given: The member ids that were handed out to clients but not yet used in a JoinGroup
            (KIP-394), each with the timer that ends its validity.
        unsynced: Ids of the members of the new generation that have not sent SyncGroup yet.
    """

    __slots__ = (
        "generation",
        "given",
        "grew",
        "instances",
        "is_first",
        "join_timer",
        "leader",
        "members",
        "name",
        "offsets",
        "protocol",
        "protocol_type",
        "state",
        "subscribed",
        "sync_timer",
        "unsynced",
    )

    def __init__(self, name: str, schedule: Schedule) -> None:
        self.name = name
        self.state = GroupState.EMPTY
        self.is_first = False
        self.grew = False
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.instances: dict[str, str] = {}
        self.given: dict[str, Timer] = {}
        self.unsynced: set[str] = set()
        # The topics that the members read; None if they are unknown.
        self.subscribed: frozenset[str] | None = None
        self.join_timer = Timer(schedule)
        self.sync_timer = Timer(schedule)
        self.offsets = GroupOffsets()

    def __repr__(self) -> str:
        return (
            f"<Group {self.name!r} {self.state.value} generation={self.generation} "
            f"members={len(self.members)}>"
        )

    def step(self, following: GroupState) -> None:
        """Go to another state.

        Raises:
            ValueError: The table `_NEXT` has no such transition.
        """
        if following not in _NEXT[self.state]:
            raise ValueError(f"group {self.name!r} cannot go from {self.state} to {following}")
        self.is_first = self.state is GroupState.EMPTY and following is GroupState.PREPARING
        self.state = following

    @property
    def can_rebalance(self) -> bool:
        """Return whether a rebalance can begin now; not while another one is in preparation."""
        return GroupState.PREPARING in _NEXT[self.state]

    # -- members -----------------------------------------------------------------------------------

    def add(self, member: Member, asked: Joining) -> None:
        """Add a member. The first one is the leader, and decides the group's protocol type."""
        if not self.members:
            self.protocol_type = asked.protocol_type
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        self.leader = self.leader or member.id
        self.members[member.id] = member
        self.take_back(member.id)

    def remove(self, member_id: str) -> None:
        """Remove a member; if it was the leader, another member becomes the leader."""
        member = self.members.pop(member_id, None)
        if member is not None:
            member.session_timer.cancel()
            if member.instance_id is not None:
                self.instances.pop(member.instance_id, None)
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        self.take_back(member_id)
        self.unsynced.discard(member_id)

    def take_back(self, member_id: str) -> None:
        """Forget a member id that was handed out and not used."""
        timer = self.given.pop(member_id, None)
        if timer is not None:
            timer.cancel()

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member's id by a new one, because its client was restarted."""
        del self.members[old.id]
        old.session_timer.cancel()
        new.assignment = old.assignment
        self.members[new.id] = new
        if self.leader == old.id:
            self.leader = new.id
        if new.instance_id is not None:
            self.instances[new.instance_id] = new.id

    def member(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member with this id.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if the instance id belongs to
                another member id now.
        """
        if instance_id is not None:
            known = self.instances.get(instance_id)
            if known is None:
                raise RefusedError(ErrorCode.unknown_member_id, f"no instance {instance_id!r}")
            if known != member_id:
                raise RefusedError(
                    ErrorCode.fenced_instance_id, f"instance {instance_id!r} is {known!r} now"
                )
        member = self.members.get(member_id)
        if member is None:
            raise RefusedError(ErrorCode.unknown_member_id, f"no member {member_id!r}")
        return member

    def check_generation(self, generation: int) -> None:
        """Check that a request names the group's current generation.

        Raises:
            RefusedError: ILLEGAL_GENERATION, because the request names another one.
        """
        if generation != self.generation:
            raise RefusedError(
                ErrorCode.illegal_generation, f"generation {generation}, not {self.generation}"
            )

    @property
    def waiting(self) -> list[Member]:
        """Return the members whose JoinGroup waits for its answer."""
        return [member for member in self.members.values() if member.joining is not None]

    @property
    def all_joined(self) -> bool:
        """Return whether all members, and all clients that were given a member id, have joined."""
        return len(self.waiting) == len(self.members) and not self.given

    def elect(self) -> bool:
        """Choose a leader among the members that have joined: the old leader if it has joined.

        Returns:
            Whether any member has joined.
        """
        leader = self.members.get(self.leader or "")
        if leader is None or leader.joining is None:
            leader = next(iter(self.waiting), None)
            self.leader = self.leader if leader is None else leader.id
        return leader is not None

    @property
    def patience(self) -> float:
        """Return how many seconds a rebalance may take: the members' longest rebalance timeout."""
        return max((member.rebalance for member in self.members.values()), default=0.0)

    # -- protocols ---------------------------------------------------------------------------------

    def supports(self, asked: Joining) -> bool:
        """Return whether the protocols of a JoinGroup allow its sender to be a member."""
        if self.state is GroupState.EMPTY:
            return bool(asked.protocol_type and asked.protocols)
        shares = not self.members or asked.names & self._shared()
        return asked.protocol_type == self.protocol_type and bool(shares)

    def chosen(self) -> str:
        """Return the protocol that most members prefer, of those that all members speak."""
        shared = self._shared()
        votes = Counter(member.vote(shared) for member in self.members.values())
        return max(sorted(votes), key=votes.__getitem__)

    def begin_generation(self) -> None:
        """Begin the next generation, with the current members."""
        self.generation += 1
        self.unsynced.clear()
        self.protocol = self.chosen() if self.members else None
        self.subscribed = self._subscriptions()
        self.step(GroupState.COMPLETING if self.members else GroupState.EMPTY)

    def reads(self, topic: str) -> bool:
        """Return whether members are subscribed to a topic.

        If their topics are unknown, consumers count as subscribed, and other members do not.
        """
        if self.subscribed is None:
            return self.protocol_type == _CONSUMER
        return topic in self.subscribed

    @property
    def may_lose_offsets(self) -> bool:
        """Return whether OffsetDelete may delete offsets of topics that no member reads.

        It may if the group is empty, or if its members say which topics they read.
        """
        return self.state is GroupState.EMPTY or self.protocol_type == _CONSUMER

    def _shared(self) -> set[str]:
        members = list(self.members.values())
        return set.intersection(*(member.names() for member in members)) if members else set()

    def _subscriptions(self) -> frozenset[str] | None:
        if self.protocol_type != _CONSUMER:
            return None
        try:
            return frozenset(
                topic
                for member in self.members.values()
                for topic in _topics(member.metadata(self.protocol))
            )
        except (struct.error, UnicodeDecodeError, ValueError):
            return None


def _topics(subscription: bytes) -> list[str]:
    """Return the topics that a ConsumerProtocolSubscription names, in any of its versions."""
    _, count = struct.unpack_from(">hi", subscription)
    at, topics = 6, []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", subscription, at)
        at += 2 + length
        if length < 0 or at > len(subscription):
            raise ValueError("a topic's name is longer than what is left")
        topics.append(subscription[at - length : at].decode())
    return topics
