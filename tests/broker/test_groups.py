"""The classic group protocol of the embedded broker, on a virtual clock.

Rebalances, sessions, fencing and descriptions of groups. `test_differential_groups.py` sends
requests of the same kinds to real Kafka, too, and compares the answers; here no real time passes.
"""

from __future__ import annotations

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from aioidem._broker.group import _NEXT, Group, GroupState
from aioidem._broker.virtual import VirtualCluster

from .grouped import MemberClient, subscription

OK = ErrorCode.none


@pytest.fixture
def cluster() -> VirtualCluster:
    """Return two brokers with topics ``t`` and ``u``."""
    made = VirtualCluster(brokers=2)
    made.state.topology.create_topic("t", partitions=2, replication=1)
    made.state.topology.create_topic("u", partitions=1, replication=1)
    return made


def members(cluster: VirtualCluster, *instances: str | None) -> list[MemberClient]:
    """Return the members of a stable group, the first of which is its leader."""
    made = [MemberClient(cluster, instance) for instance in instances]
    for number, each in enumerate(made):
        each.begin()
        for known in made[:number]:
            known.ask_to_join()
    cluster.settle()
    assert [each.joined() for each in made] == [OK] * len(made)
    for each in reversed(made):
        each.ask_to_sync(*made if each.leads else ())
    assert [each.synced() for each in made] == [(OK, b"%d" % n) for n in range(len(made))]
    assert state(cluster) is GroupState.STABLE
    return made


def group_of(cluster: VirtualCluster) -> Group:
    found = cluster.state.groups.find("g")
    assert found is not None
    return found


def state(cluster: VirtualCluster) -> GroupState:
    return group_of(cluster).state


def pass_time(cluster: VirtualCluster, seconds: float, *alive: MemberClient) -> None:
    """Let time pass while the members in `alive` send a heartbeat each second."""
    until = cluster.now + seconds
    while cluster.now < until:
        cluster.run_until(min(cluster.now + 1, until))
        for each in alive:
            each.beat()


# -- rebalances ------------------------------------------------------------------------------------


def test_a_member_alone_leads_and_is_assigned_everything(cluster: VirtualCluster) -> None:
    """The only member of a group is its leader and gets what it assigned to itself."""
    [one] = members(cluster, None)
    assert (one.generation, one.leads, len(one.members)) == (1, True, 1)
    assert one.members[0].metadata == subscription("t")
    assert one.beat() is OK
    assert one.leave() is OK
    assert state(cluster) is GroupState.EMPTY
    assert group_of(cluster).generation == 2


def test_a_later_member_waits_until_all_have_joined_again(cluster: VirtualCluster) -> None:
    """A member that joins a stable group is answered once all members have joined again."""
    [one] = members(cluster, None)
    two = MemberClient(cluster)
    assert two.begin() is None
    assert one.beat() is ErrorCode.rebalance_in_progress
    one.ask_to_join()
    assert (one.joined(), two.joined()) == (OK, OK)
    assert one.generation == two.generation == 2
    assert (one.leads, two.leads, len(one.members), two.members) == (True, False, 2, ())
    two.ask_to_sync()
    assert two.synced() is None
    one.ask_to_sync(one, two)
    assert (one.synced(), two.synced()) == ((OK, b"0"), (OK, b"1"))


def test_a_member_that_leaves_starts_a_rebalance(cluster: VirtualCluster) -> None:
    """A member that leaves starts a rebalance."""
    one, two = members(cluster, None, None)
    assert one.leave() is OK
    assert two.beat() is ErrorCode.rebalance_in_progress
    two.ask_to_join()
    assert two.joined() is OK
    assert two.leads
    assert two.generation == 3
    assert one.beat() is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_removed(cluster: VirtualCluster) -> None:
    """A member without heartbeats is removed when its session ends."""
    one, two = members(cluster, None, None)
    pass_time(cluster, 9.5, one)
    assert len(group_of(cluster).members) == 2
    pass_time(cluster, 1.0, one)
    assert list(group_of(cluster).members) == [one.member_id]
    assert one.beat() is ErrorCode.rebalance_in_progress
    assert two.beat() is ErrorCode.unknown_member_id


def test_a_commit_is_a_heartbeat(cluster: VirtualCluster) -> None:
    """An OffsetCommit counts as a heartbeat."""
    [one] = members(cluster, None)
    for _ in range(3):
        pass_time(cluster, 9.0)
        assert one.commit() is OK
    assert state(cluster) is GroupState.STABLE


def test_a_member_that_does_not_join_again_in_time_is_removed(cluster: VirtualCluster) -> None:
    """Members that have not joined within the group's longest rebalance timeout are removed."""
    one, two = members(cluster, None, None)
    three = MemberClient(cluster)
    three.begin()
    two.ask_to_join()
    pass_time(cluster, 59.0, one)
    assert (two.joined(), three.joined()) == (None, None)
    pass_time(cluster, 1.5, one)
    assert (two.joined(), three.joined()) == (OK, OK)
    assert two.leads
    assert one.beat() is ErrorCode.unknown_member_id


def test_a_member_that_does_not_sync_in_time_is_removed(cluster: VirtualCluster) -> None:
    """A member that does not send SyncGroup within the rebalance timeout is removed."""
    one, two = MemberClient(cluster), MemberClient(cluster)
    one.begin()
    two.begin()
    one.ask_to_join()
    assert (one.joined(), two.joined()) == (OK, OK)
    one.ask_to_sync(one, two)
    pass_time(cluster, 60.5, one, two)
    assert two.beat() is ErrorCode.unknown_member_id
    assert one.beat() is ErrorCode.rebalance_in_progress


def test_a_leader_that_joins_again_has_everything_assigned_anew(cluster: VirtualCluster) -> None:
    """A leader that joins again starts a rebalance."""
    one, two = members(cluster, None, None)
    two.ask_to_join()
    assert two.joined() is OK
    assert two.generation == 2
    assert state(cluster) is GroupState.STABLE
    one.ask_to_join()
    assert one.joined() is None
    assert state(cluster) is GroupState.PREPARING


def test_a_member_that_changes_its_subscription_starts_a_rebalance(cluster: VirtualCluster) -> None:
    """A member that joins with another subscription starts a rebalance."""
    one, two = members(cluster, None, None)
    two.protocols = {"range": subscription("t", "u")}
    two.ask_to_join()
    assert two.joined() is None
    one.ask_to_join()
    assert (one.joined(), two.joined()) == (OK, OK)
    assert {each.metadata for each in one.members} == {
        subscription("t"),
        subscription("t", "u"),
    }


def test_a_rebalance_while_assignments_are_awaited(cluster: VirtualCluster) -> None:
    """SyncGroups that wait are answered REBALANCE_IN_PROGRESS when another rebalance begins."""
    one, two = members(cluster, None, None)
    one.ask_to_join()
    two.ask_to_join()
    two.ask_to_sync(generation_id=3)
    assert two.synced() is None
    three = MemberClient(cluster)
    three.begin()
    assert two.synced() == (ErrorCode.rebalance_in_progress, b"")


def test_a_group_that_was_empty_waits_for_more(cluster: VirtualCluster) -> None:
    """The first rebalance of an empty group waits for further members."""
    cluster.state.topology.set_broker_configs(None, {"group.initial.rebalance.delay.ms": "3000"})
    one, two = MemberClient(cluster), MemberClient(cluster)
    assert one.begin() is None
    pass_time(cluster, 2.0)
    assert two.begin() is None
    # Another member has joined, which makes the wait three seconds longer.
    pass_time(cluster, 3.5)
    assert one.joined() is None
    pass_time(cluster, 1.0)
    assert (one.joined(), two.joined()) == (OK, OK)
    assert one.generation == two.generation == 1


def test_the_protocol_that_most_like_most_of_those_that_all_speak(cluster: VirtualCluster) -> None:
    """The group uses the protocol that most members prefer, among those that all support."""
    wishes: list[dict[str, bytes]] = [
        {"sticky": b"a", "range": b"", "roundrobin": b""},
        {"roundrobin": b"b", "range": b""},
        {"roundrobin": b"c", "range": b"", "cooperative": b""},
    ]
    made = [MemberClient(cluster) for _ in wishes]
    for each, protocols in zip(made, wishes, strict=True):
        each.protocols = protocols
    made[0].begin()
    made[1].begin()
    made[2].begin()
    made[0].ask_to_join()
    assert [each.joined() for each in made] == [OK] * 3
    assert group_of(cluster).protocol == "roundrobin"
    assert {each.metadata for each in made[0].members} == {b"", b"b", b"c"}


# -- refusals --------------------------------------------------------------------------------------


def test_a_new_member_is_given_an_id_to_come_back_with(cluster: VirtualCluster) -> None:
    """A new member gets MEMBER_ID_REQUIRED and an id with which to join again (KIP-394)."""
    one = MemberClient(cluster)
    one.ask_to_join(4)
    assert one.joined() is ErrorCode.member_id_required
    assert one.member_id.startswith("virtual-")
    pass_time(cluster, 10.5)
    one.ask_to_join(4)
    assert one.joined() is ErrorCode.unknown_member_id
    old = MemberClient(cluster)
    old.ask_to_join(3)
    assert old.joined() is OK


def test_a_member_that_never_joins_delays_a_rebalance_until_its_timeout(
    cluster: VirtualCluster,
) -> None:
    """A member that got an id and never joins delays a rebalance by its session timeout at most."""
    [one] = members(cluster, None)
    ghost = MemberClient(cluster)
    ghost.ask_to_join()
    assert ghost.joined() is ErrorCode.member_id_required
    one.protocols = {"range": b"new"}
    one.ask_to_join()
    assert one.joined() is None
    pass_time(cluster, 10.5)
    assert one.joined() is OK


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"group_id": ""}, ErrorCode.invalid_group_id),
        ({"session_ms": 5_999}, ErrorCode.invalid_session_timeout),
        ({"session_ms": 1_800_001}, ErrorCode.invalid_session_timeout),
        ({"member_id": "somebody"}, ErrorCode.unknown_member_id),
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": {"other": b""}}, ErrorCode.inconsistent_group_protocol),
        ({"protocols": {}}, ErrorCode.inconsistent_group_protocol),
        ({"member_id": "x", "instance": "i"}, ErrorCode.unknown_member_id),
    ],
)
def test_invalid_joins_are_refused_and_the_group_stays_stable(
    cluster: VirtualCluster, changes: dict[str, Any], code: ErrorCode
) -> None:
    """JoinGroup refuses invalid requests with Kafka's error codes, and the group stays stable."""
    members(cluster, None)
    asking = MemberClient(cluster)
    group_id = changes.pop("group_id", "g")
    for name, value in changes.items():
        setattr(asking, name, value)
    asking.ask_to_join(group_id=group_id)
    assert asking.joined() is code
    assert state(cluster) is GroupState.STABLE


def test_a_full_group_refuses_new_members(cluster: VirtualCluster) -> None:
    """A full group refuses new members with GROUP_MAX_SIZE_REACHED."""
    cluster.state.topology.set_broker_configs(None, {"group.max.size": "1"})
    [one] = members(cluster, None)
    two = MemberClient(cluster)
    assert two.begin() is ErrorCode.group_max_size_reached
    assert one.beat() is OK


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, OK),
        ({"generation_id": 0}, ErrorCode.illegal_generation),
        ({"generation_id": 2}, ErrorCode.illegal_generation),
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"group_instance_id": "i"}, ErrorCode.unknown_member_id),
        ({"group_id": "h"}, ErrorCode.unknown_member_id),
        ({"group_id": ""}, ErrorCode.invalid_group_id),
    ],
)
def test_whose_heartbeats_and_syncs_are_taken(
    cluster: VirtualCluster, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Heartbeat and SyncGroup check the member, its instance, the generation and the group."""
    cluster.state.coordinators |= {"g": 0, "h": 0}
    [one] = members(cluster, None)
    assert one.beat(**changes) is code
    one.ask_to_sync(**changes)
    assert one.synced() == (code, b"0" if code is OK else b"")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol_type": "connect"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": "sticky"}, ErrorCode.inconsistent_group_protocol),
        ({"protocol_name": None}, ErrorCode.inconsistent_group_protocol),
    ],
)
def test_a_sync_is_of_the_groups_protocol(
    cluster: VirtualCluster, changes: dict[str, Any], code: ErrorCode
) -> None:
    """SyncGroup refuses a protocol type or name that is not the group's."""
    [one] = members(cluster, None)
    one.ask_to_sync(**changes)
    assert one.synced() == (code, b"")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, OK),
        ({"generation_id_or_member_epoch": 0}, ErrorCode.illegal_generation),
        ({"member_id": "x"}, ErrorCode.unknown_member_id),
        ({"generation_id_or_member_epoch": -1, "member_id": ""}, ErrorCode.unknown_member_id),
        ({"group_instance_id": "i"}, ErrorCode.unknown_member_id),
    ],
)
def test_only_members_of_the_current_generation_may_commit(
    cluster: VirtualCluster, changes: dict[str, Any], code: ErrorCode
) -> None:
    """Only members of the current generation may commit for a group with members."""
    [one] = members(cluster, None)
    assert one.commit(**changes) is code


def test_commits_are_refused_until_the_new_assignment(cluster: VirtualCluster) -> None:
    """Between the joins of a rebalance and its assignment, commits get REBALANCE_IN_PROGRESS."""
    one, two = members(cluster, None, None)
    one.ask_to_join()
    assert two.commit(7) is OK  # the old generation has not ended yet
    two.ask_to_join()
    assert (one.joined(), two.joined()) == (OK, OK)
    assert one.commit() is ErrorCode.rebalance_in_progress
    one.ask_to_sync(one, two)
    assert one.commit() is OK


# -- static members (KIP-345) ----------------------------------------------------------------------


def test_a_static_member_that_returns_takes_its_place_without_a_rebalance(
    cluster: VirtualCluster,
) -> None:
    """A static member that returns gets its old assignment without a rebalance (KIP-345)."""
    one, two = members(cluster, "a", "b")
    again = MemberClient(cluster, "b")
    assert again.begin() is OK
    assert (again.generation, again.leads, again.member_id[:2]) == (2, False, "b-")
    again.ask_to_sync()
    assert again.synced() == (OK, b"1")
    assert two.beat() is ErrorCode.fenced_instance_id
    assert two.commit() is ErrorCode.fenced_instance_id
    assert one.beat() is OK


@pytest.mark.parametrize(("version", "told"), [(8, False), (9, True)])
def test_a_static_leader_that_comes_back_assigns_nothing(
    cluster: VirtualCluster, version: int, *, told: bool
) -> None:
    """A static leader that returns is told to skip the assignment (v9), or not to lead (v8)."""
    one, _ = members(cluster, "a", "b")
    again = MemberClient(cluster, "a")
    assert again.begin(version) is OK
    answer = again.client.answer(again.join_id)
    assert answer is not None
    assert getattr(answer, "skip_assignment", False) is told
    assert again.leads is told
    assert len(answer.members) == (2 if told else 0)
    assert one.beat() is ErrorCode.fenced_instance_id
    assert state(cluster) is GroupState.STABLE


def test_a_static_member_that_is_away_keeps_its_place_until_its_session_ends(
    cluster: VirtualCluster,
) -> None:
    """A static member that is away keeps its place until its session ends."""
    one, _two = members(cluster, "a", "b")
    pass_time(cluster, 9.5, one)
    assert list(group_of(cluster).instances) == ["a", "b"]
    pass_time(cluster, 1.0, one)
    assert list(group_of(cluster).instances) == ["a"]


def test_a_waiting_static_member_is_fenced_by_another_of_its_instance(
    cluster: VirtualCluster,
) -> None:
    """A static member whose JoinGroup waits is fenced when another joins with its instance id."""
    one, two = members(cluster, "a", "b")
    one.protocols = {"range": b"new"}
    one.ask_to_join()
    assert one.joined() is None
    again = MemberClient(cluster, "a")
    assert again.begin() is None
    assert one.joined() is ErrorCode.fenced_instance_id
    two.ask_to_join()
    assert (again.joined(), two.joined()) == (OK, OK)


def test_an_operator_removes_a_static_member_by_its_name(cluster: VirtualCluster) -> None:
    """LeaveGroup removes a static member by its group instance id alone."""
    one, two = members(cluster, "a", "b")
    assert one.leave(member_id="", group_instance_id="c") is ErrorCode.unknown_member_id
    assert one.leave(group_instance_id="b") is ErrorCode.fenced_instance_id
    assert one.leave(member_id="", group_instance_id="b") is OK
    assert two.beat() is ErrorCode.unknown_member_id
    assert one.beat() is ErrorCode.rebalance_in_progress


def test_static_members_that_do_not_join_are_removed_with_their_sessions(
    cluster: VirtualCluster,
) -> None:
    """Static members that do not join a rebalance are removed when their sessions end."""
    one, two = members(cluster, "a", "b")
    one.leave()
    pass_time(cluster, 120.0)
    assert not group_of(cluster).members
    assert two.beat() is ErrorCode.unknown_member_id


# -- descriptions of groups ------------------------------------------------------------------------


def test_a_group_is_described(cluster: VirtualCluster) -> None:
    """DescribeGroups returns the state and members of a group."""
    assert MemberClient(cluster).describe().error_code is ErrorCode.group_id_not_found
    assert MemberClient(cluster).describe(5).group_state == "Dead"
    one, two = members(cluster, None, "b")
    told = one.describe()
    assert (told.group_state, told.protocol_type, told.protocol_data) == (
        "Stable",
        "consumer",
        "range",
    )
    assert [(each.member_id, each.member_assignment) for each in told.members] == [
        (one.member_id, b"0"),
        (two.member_id, b"1"),
    ]
    assert told.members[1].group_instance_id == "b"
    assert told.members[0].client_host == "/127.0.0.1"
    one.ask_to_join()
    told = two.describe()  # not `one`: a broker does not read from a connection whose request waits
    assert (told.group_state, told.protocol_data) == ("PreparingRebalance", "")


def listed(cluster: VirtualCluster, **filters: Any) -> dict[str, str]:
    return {
        each.group_id: each.group_state
        for broker in (0, 1)
        for each in cluster.client(broker).ask(16, 5, filters).groups
    }


def test_each_broker_lists_the_groups_it_coordinates(cluster: VirtualCluster) -> None:
    """ListGroups returns the groups that a broker coordinates."""
    cluster.state.coordinators |= {"g": 0, "h": 1}
    members(cluster, None)
    outsider = MemberClient(cluster, group="h")
    assert outsider.commit() is OK
    assert listed(cluster) == {"g": "Stable", "h": "Empty"}
    assert listed(cluster, states_filter=["stable"]) == {"g": "Stable"}
    assert listed(cluster, types_filter=["Classic"]) == {"g": "Stable", "h": "Empty"}
    assert listed(cluster, types_filter=["consumer"]) == {}
    assert len(cluster.client(0).ask(16, 0, {}).groups) == 1


def delete_offsets(cluster: VirtualCluster, topic: str, partition: int = 0) -> ErrorCode:
    asking = MemberClient(cluster)
    topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
    answer = asking.client.ask(47, 0, {"group_id": "g", "topics": topics})
    if answer.error_code is not OK:
        return answer.error_code  # type: ignore[no-any-return]
    return answer.topics[0].partitions[0].error_code  # type: ignore[no-any-return]


def test_offsets_of_topics_without_subscribers_can_be_deleted(cluster: VirtualCluster) -> None:
    """OffsetDelete deletes only offsets of topics that no member subscribes to (KIP-496)."""
    assert delete_offsets(cluster, "t") is ErrorCode.group_id_not_found
    [one] = members(cluster, None)
    assert one.commit(3) is OK
    cluster.state.groups.commit("g", ("u", 0), cluster.state.groups.committed("g")["t", 0])
    assert delete_offsets(cluster, "t") is ErrorCode.group_subscribed_to_topic
    assert delete_offsets(cluster, "u") is OK
    assert delete_offsets(cluster, "u", 5) is ErrorCode.unknown_topic_or_partition
    assert list(cluster.state.groups.committed("g")) == [("t", 0)]
    one.leave()
    assert delete_offsets(cluster, "t") is OK
    assert cluster.state.groups.committed("g") == {}


def test_a_group_with_members_is_not_deleted(cluster: VirtualCluster) -> None:
    """DeleteGroups refuses a group that has members."""
    [one] = members(cluster, None)

    def delete() -> ErrorCode:
        [result] = MemberClient(cluster).client.ask(42, 2, {"groups_names": ["g"]}).results
        return result.error_code  # type: ignore[no-any-return]

    assert delete() is ErrorCode.non_empty_group
    one.leave()
    assert delete() is OK
    assert delete() is ErrorCode.group_id_not_found


# -- coordinators ----------------------------------------------------------------------------------


def test_a_coordinator_that_moves_answers_waiting_members_not_coordinator(
    cluster: VirtualCluster,
) -> None:
    """Members whose JoinGroup waits are answered NOT_COORDINATOR when the coordinator moves."""
    one, two = members(cluster, None, None)
    one.ask_to_join()
    here = cluster.state.coordinator_of("g")
    assert here is not None
    cluster.state.move_coordinator("g", 1 - here.id)
    cluster.settle()
    assert one.joined() is ErrorCode.not_coordinator
    assert two.beat() is ErrorCode.not_coordinator
    for each in (one, two):
        each.connect()
        each.ask_to_join()
    assert (one.joined(), two.joined()) == (OK, OK)


def test_a_coordinator_that_stops_loses_waiting_requests_and_no_member(
    cluster: VirtualCluster,
) -> None:
    """A coordinator that stops loses JoinGroups that wait, but none of the group's members."""
    one, two = members(cluster, None, None)
    one.ask_to_join()
    here = cluster.state.coordinator_of("g")
    assert here is not None
    cluster.state.stop_broker(here.id, clean=True)
    two.connect()
    two.ask_to_join()
    assert two.joined() is None
    pass_time(cluster, 11.0)
    assert two.joined() is OK
    assert one.member_id not in group_of(cluster).members


def test_a_member_that_hangs_up_while_it_waits_is_out_in_the_end(cluster: VirtualCluster) -> None:
    """A member that closes its connection while it waits is removed when its session ends.

    The broker cannot notice earlier, because it does not read from a connection whose request
    waits.
    """
    [one] = members(cluster, None)
    gone = MemberClient(cluster)
    gone.begin()
    gone.client.close()
    pass_time(cluster, 1.0, one)
    one.ask_to_join()
    assert one.joined() is OK
    assert len(one.members) == 2
    one.ask_to_sync(one)
    pass_time(cluster, 61.0, one)
    assert one.beat() is ErrorCode.rebalance_in_progress
    assert list(group_of(cluster).members) == [one.member_id]


def test_a_group_changes_its_state_by_the_table_only(cluster: VirtualCluster) -> None:
    """A group refuses state transitions that the table `_NEXT` does not have."""
    group = Group("g", cluster.state.schedule)
    for before in GroupState:
        for after in GroupState:
            group.state = before
            if after in _NEXT[before]:
                group.step(after)
            else:
                with pytest.raises(ValueError, match="cannot go from"):
                    group.step(after)


def test_heartbeats_leave_no_events_behind(cluster: VirtualCluster) -> None:
    """Heartbeats do not accumulate events in the cluster's schedule."""
    [one] = members(cluster, None)
    for _ in range(500):
        pass_time(cluster, 0.01, one)
    assert len(cluster.state.schedule) < 5
