"""The classic group protocol on real Kafka and the embedded broker, whose answers are compared.

The scripts are about rebalances, sessions, fencing and descriptions of groups.

Each member has a connection of its own to each broker, because a broker does not read from a member
whose JoinGroup waits. Before a request that depends on the effect of an earlier one, a script
repeats DescribeGroups until both brokers show the effect, and then compares the descriptions.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Final, TypeAlias

from aioidem.broker import EmbeddedCluster
from aioidem.testing import KafkaCluster

from .differential import Member, Pair, Plain, Side, Step, TopicId, codes_of
from .differential_steps import HOST, KAFKAS, SETTINGS, Bench, World

__all__ = ["GROUP_WORLDS", "OF_GROUPS", "SCRIPTS", "Groups", "group_bench", "groups_on", "refusals"]

Script: TypeAlias = Callable[["Groups"], Awaitable[None]]

# Kafka 3.9.1 is not compared: its group coordinator is an older implementation, which later
# versions do not have.
GROUP_WORLDS: Final = (World("4.3.1", "4.3.1", None, 13, 18, 13, 11, 5, 6),)
OF_GROUPS: Final = SETTINGS | {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "group.max.size": "3",
}
_OFFSETS: Final = {"offsets.topic.num.partitions": "1"}
_BUSY: Final = frozenset(
    {"coordinator_load_in_progress", "coordinator_not_available", "not_coordinator"}
)
_LONG: Final = timedelta(seconds=60)
_SHORT: Final = timedelta(milliseconds=400)
_NOT_SAID: Final = -(2**31)
_numbers = count(1)


def subscription(*topics: str) -> bytes:
    """Return a consumer's metadata for the group leader: a ConsumerProtocolSubscription, v0."""
    names = b"".join(struct.pack(">h", len(each)) + each.encode() for each in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE: Final = {"range": subscription("read")}


class Groups:
    """Both brokers, and the steps that belong to no single member of a group."""

    def __init__(self, bench: Bench, connect: Callable[[], Pair]) -> None:
        self.b = bench
        self._connect = connect
        self.opened: list[Pair] = []

    def member(self, group: str, name: str, **options: Any) -> Someone:
        """Make a new member of a group, with connections of its own to both brokers."""
        pair = self._connect()
        self.opened.append(pair)
        return Someone(self, pair, group, f"{group} {name}", **options)

    @property
    def steps(self) -> int:
        """Return the number of steps that were sent to both brokers, on all connections."""
        return sum(pair.steps for pair in (self.b.pair, *self.opened))

    async def ask(self, step: Step) -> Plain:
        """Send a step to both brokers, compare, and return Kafka's answer."""
        return await self.b.pair.ask(step)

    @staticmethod
    def group() -> str:
        """Return a name that no group has had yet."""
        return f"group-{next(_numbers)}"

    @staticmethod
    def describe(*groups: str, version: int = 6, operations: bool = False) -> Step:
        body = {"groups": list(groups), "include_authorized_operations": operations}
        return Step(15, version, body, label=f"describe {groups} v{version}")

    @staticmethod
    def list(states: Sequence[str] = (), types: Sequence[str] = (), version: int = 5) -> Step:
        body = {"states_filter": list(states), "types_filter": list(types)}
        return Step(16, version, body, label=f"list {states} {types} v{version}")

    @staticmethod
    def delete(*groups: str, version: int = 2) -> Step:
        return Step(42, version, {"groups_names": list(groups)}, label=f"delete {groups}")

    @staticmethod
    def delete_offsets(group: str, topic: str, *partitions: int) -> Step:
        parts = [{"partition_index": each} for each in partitions]
        body = {"group_id": group, "topics": [{"name": topic, "partitions": parts}]}
        return Step(47, 0, body, label=f"delete offsets of {topic} in {group}")

    @staticmethod
    def committed(group: str, *topics: str) -> Step:
        wanted = [{"name": each, "partition_indexes": [0, 1]} for each in topics]
        body = {"groups": [{"group_id": group, "topics": wanted}], "require_stable": False}
        return Step(9, 9, body, label=f"committed in {group}")

    async def until(self, group: str, state: str, members: int) -> None:
        """Wait until both brokers show this state and size of the group; compare descriptions."""

        def holds(answer: Plain) -> bool:
            [told] = answer["groups"].values()
            return told["group_state"] == state and len(told["members"]) == members

        await self.b.pair.until(self.describe(group), holds)
        await self.ask(self.describe(group))

    async def coordinated(self) -> None:
        """Wait until the group coordinators of both brokers are available and loaded."""
        body = {"key_type": 0, "coordinator_keys": ["any"]}
        for step in (
            Step(10, 4, body),
            Step(12, 4, {"group_id": "any", "generation_id": 1, "member_id": "nobody"}),
        ):
            await self.b.pair.until(step, lambda answer: not codes_of(answer) & _BUSY)


class Someone:
    """A client of both brokers that is a member of a group, or tries to become one."""

    def __init__(
        self,
        groups: Groups,
        pair: Pair,
        group: str,
        name: str,
        *,
        instance: str | None = None,
        protocols: Mapping[str, bytes] | None = None,
        kind: str = "consumer",
        session: timedelta = _LONG,
        rebalance: timedelta = _LONG,
    ) -> None:
        self.groups = groups
        self.pair = pair
        self.group = group
        self.name = name
        self.instance = instance
        self.protocols = RANGE if protocols is None else protocols
        self.kind = kind
        self.session = session
        self.rebalance = rebalance
        self.generation = -1
        self.id: Any = ""
        self._begun: Step | None = None

    @property
    def place(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }

    # -- requests ----------------------------------------------------------------------------------

    def joining(self, version: int = 9, **changes: Any) -> Step:
        body = self.place | {
            "session_timeout": self.session,
            "rebalance_timeout": self.rebalance,
            "protocol_type": self.kind,
            "protocols": [
                {"name": name, "metadata": data} for name, data in self.protocols.items()
            ],
            **changes,
        }
        gives = "" if "member_id" in changes else self.name
        return Step(11, version, body, label=f"{self.name} joins v{version}", gives=gives)

    def syncing(self, *others: Someone, version: int = 5, **changes: Any) -> Step:
        body = self.place | {
            "protocol_type": self.kind,
            "protocol_name": next(iter(self.protocols), ""),
            "assignments": [
                {"member_id": each.id, "assignment": each.name.encode()} for each in others
            ],
            **changes,
        }
        return Step(14, version, body, label=f"{self.name} syncs v{version}")

    def beating(self, version: int = 4, **changes: Any) -> Step:
        return Step(12, version, self.place | changes, label=f"{self.name} beats v{version}")

    def leaving(self, version: int = 5, **changes: Any) -> Step:
        who = {"member_id": self.id, "group_instance_id": self.instance, "reason": "done"}
        body = {"group_id": self.group, "member_id": self.id, "members": [who | changes]}
        return Step(13, version, body, label=f"{self.name} leaves v{version}")

    def committing(self, version: int = 9, topic: str = "read", **changes: Any) -> Step:
        part = {"partition_index": 0, "committed_offset": 3, "committed_metadata": "note"}
        body = self.place | {
            "generation_id_or_member_epoch": self.generation,
            "retention_time": timedelta(milliseconds=-1),
            "topics": [{"name": topic, "topic_id": TopicId(topic), "partitions": [part]}],
            **changes,
        }
        return Step(8, version, body, label=f"{self.name} commits v{version}")

    # -- what the member does ----------------------------------------------------------------------

    async def ask(self, step: Step) -> Plain:
        """Send a step to both brokers, note member id and generation, and return Kafka's answer."""
        [answer] = await self.pair.do(step)
        return self._taken(step, self.pair.real.plain(step, answer))

    async def begin(self, step: Step) -> None:
        """Send a step to both brokers without waiting; `end` returns the answer."""
        self._begun = step
        for side in (self.pair.real, self.pair.ours):
            await side.begin(step)

    async def end(self) -> Plain:
        """Compare the answers to the step that `begin` sent, and return Kafka's."""
        assert self._begun is not None
        step, self._begun = self._begun, None
        real, ours = [await side.end(step) for side in (self.pair.real, self.pair.ours)]
        self.pair.compare(step, real, ours)
        return self._taken(step, self.pair.real.plain(step, real))

    async def identify(self, version: int = 9) -> None:
        """Get a member id with a first JoinGroup, if the member needs one (KIP-394)."""
        if self.instance is None and version >= 4:
            await self.ask(self.joining(version))

    async def come(self, version: int = 9) -> None:
        """Send a JoinGroup, after `identify`, without waiting for the answer."""
        await self.identify(version)
        await self.begin(self.joining(version))

    def _taken(self, step: Step, answer: Plain) -> Plain:
        if not isinstance(answer, dict):
            return answer  # not an answer, but for example `CLOSED`
        if step.api == 11 and step.gives and answer["member_id"]:
            self.id = Member(self.name)
        if step.api == 11 and answer["error_code"] == "none":
            self.generation = answer["generation_id"]
        return answer


async def formed(g: Groups, *members: Someone) -> None:
    """Make a stable group of the members, the first of which is its leader."""
    group = members[0].group
    for number, each in enumerate(members):
        await each.come()
        await g.until(group, "PreparingRebalance" if number else "CompletingRebalance", number + 1)
        for known in members[:number]:
            await known.begin(known.joining())
        for known in members[: number + 1]:
            await known.end()
    await assigned(g, *members)


async def assigned(g: Groups, leader: Someone, *others: Someone) -> None:
    """Let each member of a generation send SyncGroup, the leader last: the others wait for it."""
    for each in others:
        await each.begin(each.syncing())
    await leader.begin(leader.syncing(leader, *others))
    for each in (leader, *others):
        await each.end()
    await g.until(leader.group, "Stable", 1 + len(others))


# -- scripts ---------------------------------------------------------------------------------------


async def versions(g: Groups) -> None:
    """Use every version of every request of the group protocol."""
    for version in range(10):
        group = g.group()
        one = g.member(group, "one", instance="static" if version % 2 else None)
        old = max(version - 2, 0)
        if version < 5:
            one.instance = None
        await one.identify(version)
        await one.ask(one.joining(version))
        await one.ask(one.joining(version))
        await one.ask(one.syncing(one, version=min(old, 5)))
        await one.ask(one.beating(min(old, 4)))
        await one.ask(one.committing(max(version, 2)))
        for told in range(7):
            await g.ask(g.describe(group, f"no-{group}", version=told))
        await g.ask(g.describe(group, operations=True))
        await one.ask(one.leaving(min(old, 5)))
        await one.ask(one.leaving(min(old, 5)))
        await g.ask(g.describe(group))
        await g.ask(g.committed(group, "read"))
    for version in range(6):
        await g.ask(g.list(version=version))


async def rebalances(g: Groups) -> None:
    """Let members join, stay and leave."""
    group = g.group()
    one, two, three = (g.member(group, name) for name in ("one", "two", "three"))
    await formed(g, one, two)
    for each in (one, two):
        await each.ask(each.beating())
    await two.ask(two.joining())  # its subscription has not changed, so the answer is the same
    await two.ask(two.syncing())
    await three.come()
    await g.until(group, "PreparingRebalance", 3)
    for each in (one, two):
        await each.ask(each.beating())
        await each.ask(each.syncing())
        await each.ask(each.committing())
    await one.begin(one.joining())
    await two.begin(two.joining())
    for each in (one, two, three):
        await each.end()
    for each in (one, two, three):
        await each.ask(each.committing())
        await each.ask(each.beating())
    await g.ask(g.describe(group))
    await two.ask(two.joining())  # the same answer again, while all wait for the leader
    await assigned(g, one, two, three)
    await one.begin(one.joining())  # the leader joins again, which starts a rebalance
    await g.until(group, "PreparingRebalance", 3)
    await two.ask(two.leaving())
    await three.begin(three.joining())
    await one.end()
    await three.end()
    await two.ask(two.beating())
    await three.begin(three.syncing())
    three_again = g.member(group, "four")
    await g.until(group, "CompletingRebalance", 2)
    await three_again.come()
    await g.until(group, "PreparingRebalance", 3)
    await three.end()  # answered REBALANCE_IN_PROGRESS
    await one.begin(one.joining())
    await three.begin(three.joining())
    for each in (one, three, three_again):
        await each.end()
    await assigned(g, one, three, three_again)
    for each in (three, three_again, one):
        await each.ask(each.leaving())
    await g.until(group, "Empty", 0)
    await one.ask(one.beating())
    await one.ask(one.joining())
    again = g.member(group, "again")
    await formed(g, again)
    await g.ask(g.list(["Stable"]))
    await g.ask(g.list([" stable", "EMPTY"], ["Classic"]))
    await g.ask(g.list(["none"]))
    await g.ask(g.list([], ["consumer"]))


async def changes(g: Groups) -> None:
    """Let members join with other protocols and metadata than before.

    In every group that has a leader, each member's metadata is a subscription that Kafka can read.
    With unreadable metadata Kafka answers UNKNOWN_SERVER_ERROR or not, depending on which member's
    metadata it reads first.
    """
    group = g.group()
    both = {"range": subscription("r"), "sticky": subscription("s")}
    one = g.member(group, "one", protocols=both)
    two = g.member(group, "two", protocols=both)
    three = g.member(
        group, "three", protocols={"sticky": subscription("t"), "other": subscription("o")}
    )
    await formed(g, one, two)
    await three.come()
    await g.until(group, "PreparingRebalance", 3)
    await one.begin(one.joining())
    await two.begin(two.joining())
    for each in (one, two, three):
        await each.end()
    # The group uses "sticky", the only protocol that all three members support.
    one.protocols = two.protocols = dict(reversed(list(both.items())))
    await g.ask(g.describe(group))
    one.protocols = two.protocols = {"sticky": subscription("s")}
    # Before any member has sent SyncGroup, `one` joins again, with other protocols than before.
    await one.begin(one.joining())
    await g.until(group, "PreparingRebalance", 3)
    for each in (two, three):
        await each.begin(each.joining())
    for each in (one, two, three):
        await each.end()
    await assigned(g, one, two, three)
    stranger = g.member(group, "stranger", protocols={"range": b""})
    await stranger.ask(stranger.joining())
    stranger.protocols = {}
    await stranger.ask(stranger.joining())
    stranger.protocols, stranger.kind = {"sticky": b""}, "connect"
    await stranger.ask(stranger.joining())
    two.protocols = {"sticky": subscription("changed")}
    await two.begin(two.joining())
    await g.until(group, "PreparingRebalance", 3)
    await one.ask(one.joining(protocol_type="connect"))
    await three.ask(three.leaving())
    await one.begin(one.joining())
    await two.end()
    await one.end()
    await g.ask(g.describe(group))
    empty = g.member(g.group(), "empty", kind="")
    await empty.ask(empty.joining())
    empty.kind, empty.protocols = "consumer", {}
    await empty.ask(empty.joining())
    await g.ask(g.describe(empty.group))


async def crowds(g: Groups) -> None:
    """Let a fourth member try to join groups of at most three."""
    group = g.group()
    one, two, three, four = (g.member(group, name) for name in ("one", "two", "three", "four"))
    await formed(g, one, two, three)
    await four.ask(four.joining())
    await four.ask(four.joining(3))
    await three.ask(three.beating())
    await one.begin(one.joining())
    await g.until(group, "PreparingRebalance", 3)
    await four.ask(four.joining())  # there is room while fewer than three members wait
    await two.begin(two.joining())
    await three.begin(three.joining())
    await g.until(group, "PreparingRebalance", 3)
    await four.ask(four.leaving())
    for each in (one, two, three):
        await each.end()


async def sessions(g: Groups) -> None:
    """Let sessions end and rebalance timeouts pass."""
    group = g.group()
    one, two = g.member(group, "one"), g.member(group, "two", session=_SHORT)
    await formed(g, one, two)
    await g.until(group, "PreparingRebalance", 1)  # the session of `two` has ended
    await one.ask(one.beating())
    await two.ask(two.beating())
    await two.ask(two.syncing())
    await two.ask(two.committing())
    await two.ask(two.leaving())
    await two.ask(two.joining())
    await one.ask(one.joining())
    await one.ask(one.syncing(one))
    # A member that does not join again within the rebalance timeout is removed, here `one`,
    # although its session goes on.
    group = g.group()
    one = g.member(group, "one", rebalance=_SHORT)
    two = g.member(group, "two", rebalance=_SHORT)
    await formed(g, one, two)
    await two.begin(two.joining(protocols=[{"name": "range", "metadata": b"other"}]))
    await two.end()
    await one.ask(one.beating())
    # A member that does not send SyncGroup within the rebalance timeout is removed.
    await two.ask(two.syncing(two))
    three = g.member(group, "three", rebalance=_SHORT)
    await three.come()
    await g.until(group, "PreparingRebalance", 2)
    await two.begin(two.joining())
    await two.end()
    await three.end()
    await two.ask(two.syncing(two, three))
    await g.until(group, "PreparingRebalance", 1)
    await three.ask(three.syncing())
    await two.ask(two.joining())
    # A member that was given an id and does not join is waited for until its session ends.
    group = g.group()
    other = g.member(group, "other")
    await formed(g, other)
    ghost = g.member(group, "ghost", session=_SHORT)
    await ghost.identify()
    await g.ask(g.describe(group))
    await other.ask(other.joining())
    await ghost.ask(ghost.joining())


async def statics(g: Groups) -> None:
    """Start static members again, and fence the members that they replace (KIP-345)."""
    group = g.group()
    one = g.member(group, "one", instance="a")
    two = g.member(group, "two", instance="b")
    await formed(g, one, two)
    again = g.member(group, "again", instance="b")
    await again.ask(again.joining())
    await again.ask(again.syncing())
    for step in (two.beating(), two.committing(), two.syncing(), two.joining(), two.leaving()):
        await two.ask(step)
    await again.ask(again.beating(group_instance_id="c"))
    await again.ask(again.beating(group_instance_id=None))
    await again.ask(again.beating(group_instance_id="a"))
    await again.ask(again.committing(group_instance_id="c"))
    # The leader returns: JoinGroup v9 answers that it leads and need not assign; older versions
    # answer that it does not lead.
    for version in (9, 8, 5):
        leader = g.member(group, f"leader v{version}", instance="a")
        await leader.ask(leader.joining(version))
        await leader.ask(leader.syncing(version=min(version - 2, 5)))
        await one.ask(one.beating())
        one = leader
    # A static member returns with other metadata.
    changed = g.member(
        group, "changed", instance="b", protocols={"range": subscription("read", "u")}
    )
    await changed.ask(changed.joining())
    await g.ask(g.describe(group))
    await changed.ask(changed.syncing())
    # The static member returns while all wait for the leader's assignment.
    await one.begin(one.joining())
    await g.until(group, "PreparingRebalance", 2)
    await changed.begin(changed.joining())
    await one.end()
    await changed.end()
    await changed.begin(changed.syncing())
    await g.until(group, "CompletingRebalance", 2)
    back = g.member(group, "back", instance="b")
    await back.begin(back.joining())
    await changed.end()
    await g.until(group, "PreparingRebalance", 2)
    await changed.ask(changed.beating())
    # A second client joins with the same instance id during a rebalance, and replaces `back`.
    more = g.member(group, "more", instance="b")
    await more.begin(more.joining())
    await back.end()
    await one.begin(one.joining())
    await one.end()
    await more.end()
    await assigned(g, one, more)
    # LeaveGroup removes a static member by its group instance id.
    await one.ask(one.leaving(member_id="", group_instance_id="none"))
    await one.ask(one.leaving(member_id="", group_instance_id=None))
    await one.ask(one.leaving(group_instance_id="b"))
    await one.ask(one.leaving(member_id="", group_instance_id="b"))
    await more.ask(more.beating())
    await one.ask(one.joining())
    await one.ask(one.syncing(one))
    # A static member that does not join again keeps its place until its session ends.
    short = g.member(group, "short", instance="s", session=_SHORT)
    one.rebalance = _SHORT
    await short.begin(short.joining())
    await g.until(group, "PreparingRebalance", 2)
    await one.begin(one.joining())
    await one.end()
    await short.end()
    await assigned(g, one, short)
    await g.until(group, "PreparingRebalance", 1)
    await one.ask(one.joining())


async def refusals(g: Groups) -> None:
    """Send all kinds of invalid requests to a group in each of its states."""
    group = g.group()
    one, two = g.member(group, "one"), g.member(group, "two")
    asked = g.member(group, "asked")
    other = g.member(g.group(), "other", kind="connect", protocols={"p": b""})

    async def all_that_is_wrong() -> None:
        for changes in (
            {"member_id": "nobody"},
            {"member_id": ""},
            {"generation_id": 77, "generation_id_or_member_epoch": 77},
            {"generation_id": -1, "generation_id_or_member_epoch": -1},
            {"group_instance_id": "none"},
            {"group_id": ""},
            {"group_id": "no such group"},
            {"member_id": "", "generation_id": -1, "generation_id_or_member_epoch": -1},
        ):
            who: dict[str, Any] = dict(changes)
            await asked.ask(asked.beating(**who))
            await asked.ask(asked.syncing(**who))
            for version in (2, 8, 9, 10):
                if who.get("group_id") is None:
                    await asked.ask(asked.committing(version, **who))
            known = {k: v for k, v in who.items() if k in ("member_id", "group_instance_id")}
            await asked.ask(asked.leaving(**{"member_id": "nobody", **known}))
        for step in (
            asked.joining(member_id="nobody"),
            asked.joining(session_timeout=timedelta(milliseconds=99)),
            asked.joining(session_timeout=timedelta(milliseconds=1_800_001)),
            asked.joining(group_id=""),
            asked.joining(member_id="x", group_instance_id="y"),
            asked.syncing(protocol_type="connect"),
            asked.syncing(protocol_name="sticky"),
            asked.syncing(protocol_name=None),
            asked.syncing(protocol_type=None),
            g.delete_offsets(group, "read", 0, 9),
            g.delete_offsets(group, "unread", 0),
            g.delete_offsets(group, "nowhere", 0),
            g.delete(group, "no such group", ""),
        ):
            await asked.ask(step)
        await g.ask(g.describe(group, ""))

    await all_that_is_wrong()
    await formed(g, one, two)
    asked.id, asked.generation = two.id, two.generation
    await all_that_is_wrong()
    for topic in ("read", "unread"):
        await two.ask(two.committing(topic=topic))
    await all_that_is_wrong()
    await g.ask(g.committed(group, "read", "unread"))
    await one.begin(one.joining())
    await g.until(group, "PreparingRebalance", 2)
    await all_that_is_wrong()
    await two.begin(two.joining())
    await one.end()
    await two.end()
    asked.generation = two.generation
    await all_that_is_wrong()
    await one.ask(one.leaving())
    await two.ask(two.leaving())
    await all_that_is_wrong()
    await g.ask(g.committed(group, "read", "unread"))
    await formed(g, other)
    await other.ask(other.committing())
    await g.ask(g.delete_offsets(other.group, "read", 0))
    await other.ask(other.leaving())
    await g.ask(g.delete_offsets(other.group, "read", 0))
    await g.ask(g.committed(other.group, "read"))


SCRIPTS: Final[Sequence[Script]] = (
    versions,
    rebalances,
    changes,
    crowds,
    sessions,
    statics,
    refusals,
)


Address: TypeAlias = Callable[[], tuple[str, int]]


@asynccontextmanager
async def groups_on(
    world: World, kafka: KafkaCluster | None, embedded: EmbeddedCluster, real: Address
) -> AsyncIterator[Groups]:
    """Yield `Groups` on the embedded cluster and on another broker, which is at ``real``."""

    def connect(main: Pair | None = None) -> Pair:
        """Return connections to both brokers.

        The first call passes no ``main``. Each later call passes the first pair as ``main``, and
        its new pair shares with ``main`` the names that stand for ids, the error codes that Kafka
        has sent, and the differences that were found.
        """
        pair = Pair(
            world.name,
            Side("real", real),
            Side("ours", lambda: (HOST, embedded.state.running[0].port)),
            (),
        )
        if main is not None:
            pair.real.share(main.real)
            pair.ours.share(main.ours)
            pair.seen, pair.codes, pair.unexpected = main.seen, main.codes, main.unexpected
        return pair

    main = connect()
    groups = Groups(Bench(world, main, kafka, embedded), lambda: connect(main))
    try:
        await groups.b.get_ready()
        for topic in ("read", "unread"):
            await groups.b.topic(topic, 2)
        await groups.coordinated()
        # Differences in creating topics are the subject of another test.
        main.unexpected.clear()
        yield groups
    finally:
        for each in (main, *groups.opened):
            await each.hang_up()


@asynccontextmanager
async def group_bench(world: World) -> AsyncIterator[Groups]:
    """Start real Kafka and an embedded cluster, and yield `Groups` on both."""
    properties = OF_GROUPS | KAFKAS | _OFFSETS
    async with (
        KafkaCluster(world.kafka, properties=properties) as kafka,
        EmbeddedCluster(configs=OF_GROUPS, produce_versions=world.produce) as embedded,
        groups_on(world, kafka, embedded, lambda: (HOST, kafka.brokers[0].inner_port)) as groups,
    ):
        yield groups
