"""Faults that operators cause: versions, clocks and configs of brokers that change while they run.

Each method `_do_<kind>` carries out the fault of that kind, as in `faults`. Only the swarm draws
these faults.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from aioidem._broker.partition import Partition
from aioidem._testing.wire_frames import batch_values
from aioidem.testing import LogRecord, Outcome, Row, ValueId, parse_value

if TYPE_CHECKING:
    from aioidem._broker.intercept import RequestSeen
    from aioidem._broker.topology import Topology

    from .attempts import Story
    from .schedule import Glitch, Schedule
    from .whole import Whole
    from .world import World

__all__ = [
    "INTERVAL",
    "BrokerChanges",
    "left_behind",
    "once_in_each_log",
    "reassigned",
    "repeatable",
    "steady",
    "unread",
    "unresolved_while",
    "written_late",
]

_EXPIRATION = "producer.id.expiration.ms"
INTERVAL = "producer.id.expiration.check.interval.ms"
_CHECKED_EVERY = 0.02


def once_in_each_log(records: Iterable[LogRecord]) -> set[ValueId]:
    """Return the values that several logs of a partition have, each of them once.

    Below Produce v13 a request names its topic. So a batch whose first copy was in the deleted log
    is resent to the topic that was created under the same name. No client can see the difference.
    """
    logs: dict[ValueId, list[int]] = {}
    for record in records:
        value = parse_value(record.value)
        if value is not None:
            logs.setdefault(value, []).append(record.log)
    return {value for value, found in logs.items() if len(set(found)) == len(found) > 1}


def reassigned(values: Iterable[ValueId], schedule: Schedule) -> set[ValueId]:
    """Return the records that may have moved to a partition that has later records already.

    Below Produce v13 records of the producer's old partitions are in the new topic. One that was
    refused meanwhile, and for which the caller chose no partition, may then get one of those.
    """
    return {value for value in values if schedule.by_name and value.partition < 0}


def left_behind(rows: Iterable[Row], moved_at: float | None) -> set[ValueId]:
    """Return the records that ended UNKNOWN when the producer moved to another cluster.

    Earlier records that the old cluster had refused go to the new one, so a consumer of both logs
    finds them behind these.
    """
    unknown = (row for row in rows if row.outcome is Outcome.UNKNOWN)
    return {row.value for row in unknown if row.settled == moved_at}


def repeatable(run: World | Whole) -> set[ValueId]:
    """Return the values that may be in the logs of a run twice."""
    schedule, rows = run.schedule, run.rows
    if schedule.options.get("in_doubt") == "resend":
        return set(rows)
    removed = run.removed.before_their_outcome(rows.values())
    if not (schedule.forgetful or schedule.by_name):
        return removed | run.injector.late_copies.found()
    # A broker may serve a copy after its connection was closed, and have forgotten the copy that it
    # acknowledged, or have recreated the topic. No client can prevent that.
    early = unresolved_while(run.injector.forgets_early, rows.values())
    if schedule.by_name:
        return removed | run.late | early | once_in_each_log(run.log())
    return removed | run.injector.late_copies.found() | early


def steady(run: World | Whole, place: tuple[str, int]) -> bool:
    """Return whether a partition has had one leader only, and nobody set the client's clock."""
    if any(fault.kind == "jump" for fault in run.schedule.faults):
        return False
    topic = run.cluster.topics.get(place[0])
    partition = None if topic is None else topic.partition(place[1])
    return partition is not None and partition.leader_epoch == 0 and partition.leader >= 0


def unread(run: World | Whole, row: Row, story: Story, after: int) -> str | None:
    """Return what is wrong if a record ends UNKNOWN because its brokers may have forgotten.

    It may if its leader's log cannot be read, or does not show it (`Readings`).
    """
    if not run.schedule.grants_read or story.doubted_at is None:
        return None
    topic = run.cluster.topics.get(story.place[0])
    partition = None if topic is None else topic.partition(story.place[1])
    leader = None if partition is None else partition.leader_replica
    batches = [] if leader is None else leader.log.batches
    offsets = [
        batch.base_offset
        for batch in batches
        if any(parse_value(record.value) == row.value for record in batch_values(batch.wire()))
    ]
    return run.core.readings.complaint(story.place, story.doubted_at, offsets, after, run.now)


def unresolved_while(
    windows: Collection[tuple[float, float]], rows: Collection[Row]
) -> set[ValueId]:
    """Return the records that had no outcome yet during one of some spans of time, in seconds.

    A broker that forgets the producer earlier than it said may append such a record twice, or
    accept a later batch before it, whose success then seems to prove the record. No client can
    exclude that.
    """
    return {
        row.value
        for row in rows
        for begin, end in windows
        if row.started <= end and (row.settled is None or row.settled >= begin)
    }


def written_late(run: World | Whole) -> set[ValueId]:
    """Return the records that a late copy of a request may write behind records of later calls.

    Nothing fences such a copy after the producer took another producer id, or at a broker that has
    forgotten it. What ended UNKNOWN may come so, and what was acknowledged and lost may come again.
    Where brokers only forget, the copy must have been late: in a request that was served after its
    connection was closed.
    """
    if not run.schedule.unfenced:
        return set()
    unknown = {row.value for row in run.rows.values() if row.outcome is Outcome.UNKNOWN}
    return run.lost | (unknown if run.schedule.leaves_ids else unknown & run.late)


def _beyond(partition: Partition, nbytes: int) -> int:
    """Return the offset of the oldest batch within the newest `nbytes`; the newest one counts."""
    leader, size = partition.leader_replica, 0
    batches = [] if leader is None else leader.log.batches
    for batch in reversed(batches):
        size += len(batch.data)
        if size > nbytes and batch is not batches[-1]:
            return batch.last_offset + 1
    return 0


class BrokerChanges:
    """The faults that change how brokers are configured."""

    _world: World

    def __init__(self) -> None:
        # When brokers forgot producers earlier than they had said: begin and end, in seconds.
        self.forgets_early: list[tuple[float, float]] = []
        # By cluster: how many faults lower `producer.id.expiration.ms` of its brokers now.
        self._lowered: Counter[Topology] = Counter()
        # By broker: the number of batches that it says that it retains, true or not.
        self._boasts: dict[int, int] = {}
        # Whether the answers to DescribeConfigs lack the config of KIP-1269.
        self._unnamed = False

    def _later(self, seconds: float, act: Any) -> None:
        self._world.at(self._world.now + seconds, act)

    def _do_upgrade(self, broker: int, version: int, seconds: float) -> None:
        """Stop a broker cleanly, and start it with another highest version of Produce."""
        world, cluster = self._world, self._world.cluster
        target = cluster.brokers[broker]
        if target.online:
            world.incarnations[broker] += 1
            cluster.stop_broker(broker, clean=True)
            self._later(seconds, lambda: self._start_again(broker))
        target.produce_version = version

    def _start_again(self, broker: int) -> None:
        if not self._world.cluster.brokers[broker].online:
            self._world.cluster.start_broker(broker, clean=True)

    def _do_skew(self, broker: int, ahead: float, seconds: float) -> None:
        """Set a broker's clock ahead, or behind, for a while."""
        target = self._world.cluster.brokers[broker]
        target.clock_offset_ms = round(ahead * 1000)
        self._forget_early(seconds)

        def end() -> None:
            target.clock_offset_ms = 0

        self._later(seconds, end)

    def _do_expire(self, milliseconds: int, seconds: float) -> None:
        """Lower `producer.id.expiration.ms` of all brokers for a while.

        If that happens again meanwhile, the config of the schedule is back when both are over.
        """
        topology = self._world.cluster.topology
        before = self._world.schedule.broker_configs.get(_EXPIRATION)
        self._lowered[topology] += 1
        topology.set_broker_configs(None, {**topology.configs, _EXPIRATION: str(milliseconds)})
        self._forget_early(seconds)

        def end() -> None:
            self._lowered[topology] -= 1
            if self._lowered[topology]:
                return
            configs = {k: v for k, v in topology.configs.items() if k != _EXPIRATION}
            if before is not None:
                configs[_EXPIRATION] = before
            topology.set_broker_configs(None, configs)

        self._later(seconds, end)

    def _on_forget(self, _glitch: Glitch, _seen: RequestSeen) -> None:
        """Let all brokers look for expired producers, just before they serve a request.

        Their own check comes at intervals, and so never between two requests that arrive together.
        """
        for cluster in self._world.clusters:
            cluster.forget_expired_producers()

    def _forget_early(self, seconds: float) -> None:
        now = self._world.now
        self.forgets_early.append((now, now + seconds))

    def _do_retention(self, name: str, nbytes: int, seconds: float) -> None:
        """Lower a topic's `retention.bytes` for a while; batches are removed every 20 ms.

        Brokers check that at intervals, as Kafka does. The embedded broker's own check, at each
        append, would remove batches that nobody has noted (`RemovedBatches`).
        """
        topic = self._world.cluster.topics.get(name)
        if topic is None:
            return
        until = self._world.now + seconds

        def check() -> None:
            for partition in topic.partitions:
                self._delete(partition, _beyond(partition, nbytes))
            if self._world.now < until:
                self._later(_CHECKED_EVERY, check)

        check()

    def _do_purge(self, name: str, index: int, share: float) -> None:
        """Delete the oldest records of a partition, up to a share of the committed ones."""
        topic = self._world.cluster.topics.get(name)
        partition = None if topic is None else topic.partition(index)
        if partition is not None:
            self._delete(partition, round(share * partition.high_watermark))

    def _delete(self, partition: Partition, offset: int) -> None:
        if partition.leader_replica is not None:
            self._world.removed.delete(partition, offset, self._world.now)

    def _do_unnamed(self, seconds: float) -> None:
        """Let topics' configs lack the one of KIP-1269 for a while, as without the KIP."""
        self._unnamed = True

        def end() -> None:
            self._unnamed = False

        self._later(seconds, end)

    def _do_boast(self, broker: int, retained: int, seconds: float) -> None:
        """Let a broker say for a while that it retains another number of batches than it does."""
        self._boasts[broker] = retained
        self._later(seconds, lambda: self._boasts.pop(broker, None))

    def _configure(self, name: str, config: str, value: str | None) -> None:
        topic = self._world.cluster.topics.get(name)
        if topic is None:
            return
        overrides = {k: v for k, v in topic.overrides.items() if k != config}
        if value is not None:
            overrides[config] = value
        self._world.cluster.topology.set_topic_configs(topic, overrides)
