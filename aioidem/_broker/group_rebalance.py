"""How members join a group, get their assignment, stay and leave: the classic protocol.

It is modelled on Kafka 4.3.1. A rebalance begins when a member joins, leaves or times out, and has
two rounds. In the first all members send JoinGroup: the answers wait until every member has sent
one, or until the longest rebalance timeout has passed; a member without a JoinGroup by then is
removed, unless it is static (KIP-345). The answers contain the new generation, and the answer to
the leader lists all members. In the second round all members send SyncGroup: the answers wait for
the leader's SyncGroup, which contains the assignments.

Invariants
    Every JoinGroup or SyncGroup that was accepted is answered: at the end of its round, or with an
    error when the round is abandoned or the member is removed. One exception: if LeaveGroup removes
    a member whose SyncGroup waits, that SyncGroup is never answered.
    A member without a waiting request is removed when its session ends. A new member, whose first
    JoinGroup is not answered yet, cannot send heartbeats, so its session is five minutes.
    Answers are given in the order of members, which is the order in which they joined.

Rejected
    Ending the wait of a client that closed its connection: a Kafka broker does not read from a
    connection while a request on it waits, so it does not notice the end either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.group import Group, GroupState
from aioidem._broker.group_coordinator import GroupCoordinator
from aioidem._broker.group_member import Joining, Member
from aioidem._broker.requests import Promised
from aioidem._broker.schedule import Schedule
from aioidem._broker.timer import Timer
from aioidem._broker.topology import Broker, Topology

__all__ = ["Rebalances"]

_NEW_MEMBER_SECONDS: Final = 300.0
_LARGEST: Final = "group.max.size"
_INITIAL_DELAY: Final = "group.initial.rebalance.delay.ms"
_SHORTEST_SESSION: Final = "group.min.session.timeout.ms"
_LONGEST_SESSION: Final = "group.max.session.timeout.ms"


class Rebalances:
    """The rebalances of all groups of the cluster.

    A rebalance has two rounds: first all members send JoinGroup, then all send SyncGroup. The
    answers of a round are given at its end.

    Args:
        groups: The groups and their members.
        topology: Says which broker coordinates a group, and has the brokers' configs.
        schedule: Runs the timers of sessions and rebalances.
    """

    __slots__ = ("_groups", "_schedule", "_topology")

    def __init__(self, groups: GroupCoordinator, topology: Topology, schedule: Schedule) -> None:
        self._groups = groups
        self._topology = topology
        self._schedule = schedule

    def __repr__(self) -> str:
        return f"<Rebalances of {self._groups!r}>"

    # -- what members ask --------------------------------------------------------------------------

    def check_session(self, broker: Broker, seconds: float) -> None:
        """Check the session timeout of a JoinGroup against the broker's configs.

        Raises:
            RefusedError: INVALID_SESSION_TIMEOUT, because it is shorter or longer than allowed.
        """
        shortest, longest = (
            self._setting(broker, name) for name in (_SHORTEST_SESSION, _LONGEST_SESSION)
        )
        if not shortest <= round(seconds * 1000) <= longest:
            raise RefusedError(
                ErrorCode.invalid_session_timeout, f"from {shortest} to {longest} ms"
            )

    def join(self, broker: Broker, group_id: str, asked: Joining, promised: Promised) -> None:
        """Serve JoinGroup: make the client a member of the next generation.

        ``promised`` takes the answer: at once, or at the end of the round in which all members send
        JoinGroup.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or INCONSISTENT_GROUP_PROTOCOL.
        """
        groups = self._groups
        group = groups.find(group_id) if asked.member_id else groups.make(group_id)
        if group is None:
            raise RefusedError(ErrorCode.unknown_member_id, f"no group {group_id!r}")
        if not self._has_room(broker, group, asked.member_id):
            group.remove(asked.member_id)
            promised.keep({"error_code": ErrorCode.group_max_size_reached})
        elif not group.supports(asked):
            raise RefusedError(ErrorCode.inconsistent_group_protocol, f"not as {group!r}")
        elif asked.member_id:
            self._join_again(group, asked, promised)
        else:
            self._join_first(group, asked, promised)

    def sync(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        promised: Promised,
    ) -> None:
        """Serve SyncGroup: give a member its assignment; the leader's request has all assignments.

        ``protocol`` is the protocol's type and name, None where the request has none.
        ``promised`` takes the answer, at once or when the leader has sent the assignments.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION,
                INCONSISTENT_GROUP_PROTOCOL or REBALANCE_IN_PROGRESS.
        """
        group = self._group_of_members(group_id)
        member = group.member(member_id, instance_id)
        group.check_generation(generation)
        for said, known in zip(protocol, (group.protocol_type, group.protocol), strict=True):
            if said is not None and known is not None and said != known:
                raise RefusedError(
                    ErrorCode.inconsistent_group_protocol, f"{said!r}, not {known!r}"
                )
        if group.state is GroupState.PREPARING:
            raise RefusedError(ErrorCode.rebalance_in_progress, "join again")
        group.unsynced.discard(member_id)
        if not group.unsynced:
            group.sync_timer.cancel()
        if group.state is GroupState.STABLE:
            promised.keep(_assignment(group, member))
            return
        member.syncing = promised
        if group.leader == member_id:
            for each in group.members.values():
                each.assignment = assignments.get(each.id, b"")
            self._tell_assignments(group)
            group.step(GroupState.STABLE)

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Serve Heartbeat: restart a member's session.

        Raises:
            RefusedError: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, or
                REBALANCE_IN_PROGRESS for a member that has to join again.
        """
        group = self._groups.find(group_id)
        if group is None:
            raise RefusedError(ErrorCode.unknown_member_id, f"no group {group_id!r}")
        member = group.member(member_id, instance_id)
        group.check_generation(generation)
        self._watch(group, member)
        if group.state is GroupState.PREPARING:
            raise RefusedError(ErrorCode.rebalance_in_progress, "join again")

    def committed(self, group: Group, member_id: str) -> None:
        """Restart a member's session at an OffsetCommit, unless it has to send SyncGroup first."""
        member = group.members.get(member_id)
        if member is not None and group.state in (GroupState.STABLE, GroupState.PREPARING):
            self._watch(group, member)

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]]) -> list[ErrorCode]:
        """Serve LeaveGroup: remove members, and return the error code of each.

        A static member can be removed by its instance id alone, as an operator does.
        """
        group = self._groups.find(group_id)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(leaving)
        codes = [self._leave(group, *each) for each in leaving]
        if ErrorCode.none in codes:
            if group.state in (GroupState.STABLE, GroupState.COMPLETING):
                self._prepare(group)
            elif group.state is GroupState.PREPARING:
                self._complete_if_all_joined(group)
        return codes

    def move(self, group: Group) -> None:
        """Answer NOT_COORDINATOR to a group's waiting requests, because its coordinator changes."""
        for member in group.members.values():
            member.answer_join({"error_code": ErrorCode.not_coordinator})
            member.answer_sync({"error_code": ErrorCode.not_coordinator})
            member.is_new = False
            self._watch(group, member)

    # -- joining -----------------------------------------------------------------------------------

    def _has_room(self, broker: Broker, group: Group, member_id: str) -> bool:
        largest = self._setting(broker, _LARGEST)
        known = group.members.get(member_id)
        match group.state:
            case GroupState.PREPARING:
                # Members that have joined stay. If there are too many, those that join last are
                # refused.
                is_in = known is not None and known.joining is not None
                return is_in or len(group.waiting) < largest
            case GroupState.COMPLETING | GroupState.STABLE:
                return known is not None or len(group.members) < largest
        return True

    def _join_first(self, group: Group, asked: Joining, promised: Promised) -> None:
        """Serve a JoinGroup without a member id, of a new client or a restarted static member."""
        prefix = asked.client_id if asked.instance_id is None else asked.instance_id
        member_id = f"{prefix}-{self._topology.new_uuid()}"
        known = group.instances.get(asked.instance_id or "")
        if known is not None:
            self._return(group, group.members[known], member_id, asked, promised)
        elif asked.instance_id is None and asked.needs_known_id:
            timer = group.given[member_id] = Timer(self._schedule)
            timer.set(asked.session, lambda: self._give_up(group, member_id))
            promised.keep({"error_code": ErrorCode.member_id_required, "member_id": member_id})
        else:
            self._add(group, member_id, asked, promised)

    def _join_again(self, group: Group, asked: Joining, promised: Promised) -> None:
        """Serve a JoinGroup with a member id, of a member or of a client that was given the id."""
        if asked.member_id in group.given:
            self._add(group, asked.member_id, asked, promised)
            return
        member = group.member(asked.member_id, asked.instance_id)
        same = member.protocols == asked.protocols
        leads = group.leader == member.id
        stays = same and (group.state is GroupState.COMPLETING or not leads)
        if group.state is GroupState.PREPARING or not stays:
            # The group is in a rebalance or needs one: the member's protocols have changed, or the
            # leader joins again, which it does when it wants a new assignment.
            member.update(asked)
            member.joining = promised
            self._prepare_or_complete(group)
        else:
            # Nothing has changed for this member, but the answer to its last JoinGroup may be lost:
            # repeat that answer.
            promised.keep(_generation(group, member))

    def _add(self, group: Group, member_id: str, asked: Joining, promised: Promised) -> None:
        member = Member(member_id, asked, Timer(self._schedule))
        member.is_new = True
        member.joining = promised
        group.grew = group.grew or group.is_first
        group.add(member, asked)
        self._watch(group, member, _NEW_MEMBER_SECONDS)
        self._prepare_or_complete(group)

    def _return(
        self, group: Group, old: Member, member_id: str, asked: Joining, promised: Promised
    ) -> None:
        """Let a restarted static member replace its old member id, without a rebalance if possible.

        ``old`` is the member under that id.
        """
        led = group.leader
        fenced = {"error_code": ErrorCode.fenced_instance_id, "member_id": old.id}
        old.answer_join(fenced)
        old.answer_sync({"error_code": ErrorCode.fenced_instance_id})
        member = Member(member_id, asked, Timer(self._schedule))
        group.replace(old, member)
        self._watch(group, member, old.session)
        member.joining = promised
        if group.state is GroupState.COMPLETING:
            # The leader may be computing an assignment for the old member id, which would leave the
            # new id without one.
            self._prepare(group)
        elif group.state is not GroupState.STABLE:
            self._complete_if_all_joined(group)
        elif group.chosen() != group.protocol:
            self._prepare(group)
        else:
            values = _generation(group, member)
            if asked.may_skip:
                values["skip_assignment"] = group.leader == member_id
            else:
                # This version of JoinGroup cannot say that the leader skips the assignment, so the
                # answer names the old leader.
                values |= {"leader": led, "members": ()}
            member.answer_join(values)

    # -- rounds ------------------------------------------------------------------------------------

    def _prepare_or_complete(self, group: Group) -> None:
        if group.can_rebalance:
            self._prepare(group)
        else:
            self._complete_if_all_joined(group)

    def _prepare(self, group: Group) -> None:
        """Begin a rebalance; the answers to heartbeats make the members join again."""
        if group.state is GroupState.COMPLETING:
            for member in group.members.values():
                member.assignment = b""
            self._tell_assignments(group, ErrorCode.rebalance_in_progress)
        group.unsynced.clear()
        group.sync_timer.cancel()
        group.step(GroupState.PREPARING)
        if group.is_first:
            delay = self._setting(self._topology.coordinator_of(group.name), _INITIAL_DELAY) / 1000
            self._wait_for_first(group, delay, max(group.patience - delay, 0.0))
        elif group.all_joined:
            self._complete(group)
        else:
            group.join_timer.set(group.patience, lambda: self._complete(group))

    def _wait_for_first(self, group: Group, delay: float, left: float) -> None:
        """Wait ``delay`` seconds for members of a new group, and repeat while members join.

        ``left`` is how many seconds the repeated waits may take together.
        """

        def look() -> None:
            if group.grew and left > 0:
                group.grew = False
                self._wait_for_first(group, min(delay, left), max(left - delay, 0.0))
            else:
                self._complete(group)

        group.join_timer.set(delay, look)

    def _complete_if_all_joined(self, group: Group) -> None:
        is_preparing = group.state is GroupState.PREPARING
        if is_preparing and not group.is_first and group.all_joined:
            self._complete(group)

    def _complete(self, group: Group) -> None:
        """End the first round: answer those that joined, remove the others that are not static."""
        group.join_timer.cancel()
        for member in list(group.members.values()):
            if member.joining is None and not member.is_static:
                group.remove(member.id)
        if group.members and not group.elect():
            # Only static members are left, and none has joined: wait for them, or for the end of
            # their sessions.
            group.join_timer.set(group.patience, lambda: self._complete(group))
            return
        group.begin_generation()
        if not group.members:
            return
        for member in group.members.values():
            member.answer_join(_generation(group, member))
            self._watch(group, member)
            member.is_new = False
            group.unsynced.add(member.id)
        generation = group.generation
        group.sync_timer.set(group.patience, lambda: self._end_sync(group, generation))

    def _end_sync(self, group: Group, generation: int) -> None:
        """Remove the members that joined but did not send SyncGroup in time."""
        is_waiting = group.state in (GroupState.COMPLETING, GroupState.STABLE)
        if generation == group.generation and is_waiting and group.unsynced:
            for member_id in list(group.unsynced):
                group.remove(member_id)
            self._prepare(group)

    def _tell_assignments(self, group: Group, code: ErrorCode = ErrorCode.none) -> None:
        for member in group.members.values():
            values = _assignment(group, member)
            if code is not ErrorCode.none:
                values = {"error_code": code}
            if member.answer_sync(values):
                # A session cannot end while the member waits for this answer, even if its time
                # passes (see `_expire`), so it begins anew with the answer.
                self._watch(group, member)

    # -- leaving -----------------------------------------------------------------------------------

    def _leave(self, group: Group, member_id: str, instance_id: str | None) -> ErrorCode:
        if not member_id:
            member_id = group.instances.get(instance_id or "", "")
            if not member_id:
                return ErrorCode.unknown_member_id
        elif member_id in group.given:
            group.take_back(member_id)
            return ErrorCode.none
        try:
            member = group.member(member_id, instance_id)
        except RefusedError as refusal:
            return refusal.code
        self._remove(group, member)
        return ErrorCode.none

    @staticmethod
    def _remove(group: Group, member: Member) -> None:
        member.answer_join({"error_code": ErrorCode.unknown_member_id})
        group.remove(member.id)

    def _watch(self, group: Group, member: Member, seconds: float | None = None) -> None:
        """Restart a member's session, with another length if ``seconds`` is given."""
        wait = member.session if seconds is None else seconds
        member.session_timer.set(wait, lambda: self._expire(group, member))

    def _expire(self, group: Group, member: Member) -> None:
        if member.waits or group.members.get(member.id) is not member:
            return
        self._remove(group, member)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING):
            self._prepare(group)
        elif group.state is GroupState.PREPARING and group.all_joined:
            self._complete(group)

    def _give_up(self, group: Group, member_id: str) -> None:
        """Remove a member id that was handed out and not used within a session timeout."""
        group.take_back(member_id)
        if group.state is GroupState.PREPARING and group.all_joined:
            self._complete(group)

    # -- helpers -----------------------------------------------------------------------------------

    def _group_of_members(self, group_id: str) -> Group:
        group = self._groups.find(group_id)
        if group is None or group.state is GroupState.EMPTY:
            raise RefusedError(ErrorCode.unknown_member_id, f"no group {group_id!r}")
        return group

    def _setting(self, broker: Broker | None, name: str) -> int:
        return int(self._topology.broker_config(broker, name))


def _generation(group: Group, member: Member) -> dict[str, Any]:
    """Return the answer to a member's JoinGroup; the leader's answer also lists all members."""
    members = group.members.values() if group.leader == member.id else ()
    return {
        "error_code": ErrorCode.none,
        "generation_id": group.generation,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "leader": group.leader,
        "member_id": member.id,
        "members": [
            {
                "member_id": each.id,
                "group_instance_id": each.instance_id,
                "metadata": each.metadata(group.protocol),
            }
            for each in members
        ],
    }


def _assignment(group: Group, member: Member) -> dict[str, Any]:
    """Return the answer to a member's SyncGroup."""
    return {
        "error_code": ErrorCode.none,
        "protocol_type": group.protocol_type,
        "protocol_name": group.protocol,
        "assignment": member.assignment,
    }
