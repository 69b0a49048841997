"""How faults are carried out: what each kind of `Fault` and `Glitch` does to a running `World`."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from aioidem._broker.configs import TOPIC_RETAIN
from aioidem._broker.entities import ZERO_MS, Entity, respond
from aioidem._broker.intercept import (
    Action,
    AfterAppend,
    CloseConnection,
    Delay,
    Drop,
    Refuse,
    RequestSeen,
    Respond,
    Rewrite,
)
from aioidem._broker.partition import NO_LEADER, Partition, Topic
from aioidem._broker.state import ClusterState
from aioidem._records import read_batches
from aioidem.errors import KafkaConnectionError
from aioidem.testing import Anomaly, ValueId, log_records, parse_value

from .broker_changes import BrokerChanges
from .late_copies import LateCopies
from .read_faults import ReadFaults
from .schedule import Fault, Glitch
from .strangers import STRANGER, Stranger

if TYPE_CHECKING:
    from .sim_connection import SimConnection
    from .world import World

__all__ = ["Injector"]

# The type of resource in DescribeConfigs that is a broker.
_BROKER = 4
# The faults that elect another leader in sync.
_ELECTIONS = frozenset({"kill", "move", "upgrade"})


class Injector(BrokerChanges, ReadFaults):
    """The part of a run that carries out the faults of its schedule."""

    def __init__(self, world: World) -> None:
        BrokerChanges.__init__(self)
        ReadFaults.__init__(self)
        self._world = world
        self._reads = {glitch.request: glitch for glitch in world.schedule.reads}
        self.late_copies = LateCopies(self._copies, matters=world.schedule.forgets)
        self._glitches = {glitch.request: glitch for glitch in world.schedule.glitches}
        self._served = -1
        self._garble: dict[tuple[int, int], int] = {}
        self._pid_code = 0
        self._old_metadata: dict[tuple[str | None, int, bool], Entity] | None = None
        # Who led each partition, and in which epoch, when brokers began to repeat old metadata.
        self._old_leaders: dict[tuple[UUID, int], tuple[int, int]] = {}
        self._gone: set[str] = set()
        self._denied: set[str] = set()
        self._leaderless = False
        # For each deleted topic: how many partitions it will have when it is recreated.
        self._deleted: dict[str, int] = {}
        self._laggard: dict[tuple[str, int], int] = {}
        self._refusal: tuple[int, tuple[str, int]] | None = None
        # `_unheard`: for each broker, how many more connections it closes at their first Produce
        # v14 request, and whether it carries that request out.
        # `_passed`: the connections whose Produce v14 requests are served.
        # `_secret`: whether brokers refuse DescribeConfigs.
        self._unheard: dict[int, tuple[int, bool]] = {}
        self._passed: set[int] = set()
        self._secret = False
        self._moves = count(1)
        self.refuses_passwords = False
        """Whether brokers refuse the producer's password."""
        # The place in `forgets_early` of the time in which brokers do not tell how long they
        # remember a producer; None if there is no such time, or it is over.
        self._untold: int | None = None

    # -- faults with a time -------------------------------------------------------------------

    def inject(self, fault: Fault) -> None:
        """Carry one fault out."""
        self._world.trace(f"fault {fault.kind} {fault.args}")
        self.happened(fault.kind)
        if fault.kind in ("cut", "kill"):
            self._world.note_sent()
        exposed = self._exposed() if fault.kind in _ELECTIONS else frozenset()
        before = self._copies() if exposed else Counter()
        getattr(self, f"_do_{fault.kind}")(*fault.args)
        if exposed:
            # Without idempotence an earlier copy may be left, at another offset.
            after = self._copies()
            self._world.lost |= {value for value in exposed if after[value] < before[value]}

    @staticmethod
    def happened(kind: str) -> None:
        """Note a fault that is about to happen; `rows` replaces this method."""

    def _note(self, kind: str) -> None:
        self.happened(kind)

    def _copies(self) -> Counter[ValueId | None]:
        """Return how often each value is in the logs."""
        return Counter(parse_value(record.value) for record in self._world.log())

    def _exposed(self) -> AbstractSet[ValueId]:
        """Return the acknowledged records that a clean election may lose.

        Under acks=1 these are the records above the high watermark: a follower that lags is in sync
        for a while, and can be elected.
        """
        if self._world.schedule.options.get("acks") != 1:
            return frozenset()
        return {
            value
            for topic in self._world.cluster.topics.values()
            for partition in topic.partitions
            if partition.leader != NO_LEADER
            for value in _values_from(partition, partition.leader, partition.high_watermark)
        }

    def _to(self, broker: int) -> list[SimConnection]:
        return [c for c in self._world.connections.values() if c.broker == broker]

    def _topic(self, name: str) -> Topic | None:
        return self._world.cluster.topics.get(name)

    def _partition(self, name: str, index: int) -> Partition | None:
        topic = self._topic(name)
        return None if topic is None else topic.partition(index)

    def _do_cut(self, broker: int, arriving: float, noticed: bool, answers: float) -> None:
        world = self._world
        for connection in self._to(broker):
            connection.lose_on_the_way(arriving)
            connection.mute = True
            if noticed:
                world.lose(connection, KafkaConnectionError("reset by peer"))
            else:

                def deafen(connection: SimConnection = connection) -> None:
                    connection.deaf = True

                self._later(answers * world.rtt, deafen)

    def _do_address(self, broker: int) -> None:
        """Let a broker move to another address; nobody is at its old one any more."""
        world = self._world
        self._do_cut(broker, 0.0, True, 0.0)
        moved = world.cluster.brokers[broker]
        del world.addresses[moved.host]
        moved.host = f"b{broker}-{next(self._moves)}"
        world.addresses[moved.host] = broker

    def _do_credentials(self, seconds: float, renewed: float | None) -> None:
        """Let every broker refuse passwords for a while.

        Args:
            seconds: For how long.
            renewed: After how many seconds the producer is given another password; None: never.
        """
        self.refuses_passwords = True

        def end() -> None:
            self.refuses_passwords = False

        if renewed is not None:
            self._later(renewed, self._world.renew_password)
        self._later(seconds, end)

    def _do_reset(self, broker: int, nbytes: int, way: str) -> None:
        for connection in self._to(broker):
            connection.reset_after[way] = nbytes

    def _do_narrow(self, bandwidth: float, seconds: float) -> None:
        world = self._world
        world.bandwidth = bandwidth

        def end() -> None:
            world.bandwidth = None

        self._later(seconds, end)

    def _do_kill(self, broker: int, clean: bool, seconds: float, answers_lost: bool) -> None:
        world, cluster = self._world, self._world.cluster
        if not cluster.brokers[broker].online:
            return
        if answers_lost:
            self._do_cut(broker, 0.0, True, 0.0)
        world.incarnations[broker] += 1
        cluster.stop_broker(broker, clean=clean)
        self._later(seconds, lambda: self._start(broker, clean))

    def _start(self, broker: int, clean: bool) -> None:
        if not self._world.cluster.brokers[broker].online:
            self._world.trace(f"broker {broker} starts")
            self._world.cluster.start_broker(broker, clean=clean)

    def _do_move(self, topic: str, index: int, broker: int) -> None:
        partition, cluster = self._partition(topic, index), self._world.cluster
        if partition is None or partition.leader == NO_LEADER:
            return
        if not cluster.brokers[broker].online:
            return
        if broker in partition.replicas and broker not in partition.isr:
            return  # that would be an unclean election
        cluster.move_leader(partition, broker)

    def _do_lag(self, topic: str, index: int) -> None:
        partition = self._partition(topic, index)
        if partition is None:
            return
        followers = [b for b in partition.isr if b != partition.leader]
        if followers:
            self._laggard[topic, index] = followers[0]
            partition.pause(followers[0])
            partition.shrink_isr(followers[0])
            self._world.cluster.wake(partition)

    def _do_unclean(self, topic: str, index: int) -> None:
        world, partition = self._world, self._partition(topic, index)
        laggard = self._laggard.get((topic, index))
        if partition is None or laggard is None or laggard == partition.leader:
            return
        if not world.cluster.brokers[laggard].online or laggard not in partition.replicas:
            return
        old = partition.leader_replica or partition.replicas[partition.isr[0]]
        kept = partition.replicas[laggard].log.common_end(old.log)
        gone = _values_from(partition, old.broker_id, kept)
        world.lost.update(gone)
        world.trace(f"{topic}-{index} loses from offset {kept} on: {len(gone)} records")
        world.cluster.move_leader(partition, laggard)
        partition.resume(laggard)
        world.cluster.wake(partition)

    def _do_retain(self, topic: str, retain: int) -> None:
        self._configure(topic, TOPIC_RETAIN, str(retain))

    def _do_limit(self, topic: str, nbytes: int, seconds: float) -> None:
        self._configure(topic, "max.message.bytes", str(nbytes))
        self._later(seconds, lambda: self._configure(topic, "max.message.bytes", None))

    def _do_stamps(self, topic: str, seconds: float) -> None:
        name = "message.timestamp.before.max.ms"
        self._configure(topic, name, "1")
        self._later(seconds, lambda: self._configure(topic, name, None))

    def _do_throttle(self, broker: int, throttle: float, seconds: float) -> None:
        target = self._world.cluster.brokers[broker]
        target.throttle = throttle

        def end() -> None:
            target.throttle = 0.0

        self._later(seconds, end)
        # The last answer that was throttled keeps the producer from sending for that long.
        self._later(seconds + throttle, lambda: None)

    def _do_hold(self, topic: str, index: int, _broker: int, seconds: float) -> None:
        partition = self._partition(topic, index)
        if partition is not None:
            partition.hold_high_watermark()
            self._later(seconds, lambda: self._release(partition))

    def _release(self, partition: Partition) -> None:
        partition.release_high_watermark()
        self._wake(partition)

    def _wake(self, partition: Partition) -> None:
        for cluster in self._world.clusters:
            if cluster.topics.get(partition.topic.name) is partition.topic:
                cluster.wake(partition)

    def _do_pause(self, topic: str, index: int, broker: int, seconds: float) -> None:
        partition = self._partition(topic, index)
        if partition is not None and broker in partition.replicas and broker != partition.leader:
            partition.pause(broker)
            self._later(seconds, lambda: self._resume(partition, broker))

    def _resume(self, partition: Partition, broker: int) -> None:
        if broker in partition.replicas:
            partition.resume(broker)
            self._wake(partition)

    def _do_isr(self, topic: str, index: int, broker: int, seconds: float) -> None:
        partition = self._partition(topic, index)
        if partition is not None:
            partition.shrink_isr(broker)
            self._world.cluster.wake(partition)
            self._later(seconds, lambda: self._resume(partition, broker))

    def _do_partial(self, broker: int, nbytes: int, seconds: float) -> None:
        """Let the sockets to a broker take some more bytes, and then none for a while."""
        for connection in self._to(broker):
            connection.take_only(nbytes)
            self._later(seconds, connection.take_all)

    def _do_block(self, broker: int, seconds: float) -> None:
        for connection in self._to(broker):
            connection.blocked = True

            def unblock(connection: SimConnection = connection) -> None:
                connection.blocked = False
                connection.flush()

            self._later(seconds, unblock)

    def _do_rtt(self, rtt: float) -> None:
        world = self._world
        world.rtt = rtt
        for connection in world.connections.values():
            connection.delay = connection.peer.link.down.delay = rtt / 2

    def _do_stall(self, seconds: float, polls_first: bool) -> None:
        self._world.stall(seconds, polls_first)

    def _do_pid(self, code: int, seconds: float) -> None:
        self._pid_code = code

        def end() -> None:
            self._pid_code = 0

        self._later(seconds, end)

    def _do_stale(self, seconds: float) -> None:
        self._old_metadata = {}
        self._old_leaders = {
            (topic.id, partition.index): (partition.leader, partition.leader_epoch)
            for topic in self._world.cluster.topics.values()
            for partition in topic.partitions
        }

        def end() -> None:
            self._old_metadata = None

        self._later(seconds, end)

    def _do_gone(self, topic: str, seconds: float) -> None:
        self._gone.add(topic)
        self._later(seconds, lambda: self._gone.discard(topic))

    def _do_denied(self, topic: str, seconds: float) -> None:
        """Let the producer have no permission for a topic for a while."""
        self._denied.add(topic)
        self._later(seconds, lambda: self._denied.discard(topic))

    def _deny(self, seen: RequestSeen) -> Action | None:
        places = frozenset((b.topic, b.partition) for b in seen.batches if b.topic in self._denied)
        return Refuse(ErrorCode.topic_authorization_failed, places) if places else None

    def _do_leaderless(self, seconds: float) -> None:
        self._leaderless = True

        def end() -> None:
            self._leaderless = False

        self._later(seconds, end)

    def _do_recreate(self, name: str) -> None:
        world, topic = self._world, self._topic(name)
        if topic is None:
            return
        archive = world.archive.setdefault(world.cluster.cluster_id, [])
        archive.append([r for r in world.standing(world.cluster) if r.topic == name])
        world.cluster.delete_topic(topic)
        self._deleted[name] = len(topic.partitions)

        def create() -> None:
            partitions = self._deleted.pop(name, len(topic.partitions))
            # A fault "cluster" may have put another cluster in place, which has the topic.
            if name not in world.cluster.topics:
                world.create_topic(world.cluster, name, partitions)

        self._later(0.05, create)

    def _do_unheard(self, broker: int, connections: int, processed: bool) -> None:
        self._unheard[broker] = (connections, processed)
        self._do_cut(broker, 1.0, True, 0.0)

    def _hang_up(self, seen: RequestSeen) -> Action | None:
        left, processed = self._unheard.get(seen.broker_id, (0, False))
        if seen.api_version < 14 or seen.connection_id in self._passed:
            return None
        if not left:
            self._passed.add(seen.connection_id)
            return None
        self._unheard[seen.broker_id] = (left - 1, processed)
        return CloseConnection(processed)

    def _do_secret(self, seconds: float) -> None:
        self._secret = True
        if self._world.schedule.expires_untold:
            self._untold = len(self.forgets_early)
            self._forget_early(math.inf)

        def end() -> None:
            self._secret = False

        self._later(seconds, end)

    def _do_grow(self, name: str, count: int) -> None:
        world, topic = self._world, self._topic(name)
        if topic is None and name in self._deleted:
            # Schedules rely on these partitions, so the topic is recreated with them.
            self._deleted[name] = max(self._deleted[name], count)
            return
        if topic is None or count <= len(topic.partitions):
            return
        schedule, cluster = world.schedule, world.cluster
        plan = {
            p: [(p + r) % schedule.brokers for r in range(schedule.replication)]
            for p in range(count)
        }
        there = len(topic.partitions)
        cluster.topology.add_partitions(topic, count, plan)
        for partition in topic.partitions[there:]:
            for broker in cluster.brokers.values():
                if not broker.online:
                    partition.broker_stopped(broker.id)

    def _do_cluster(self, arriving: float, noticed: bool, kept: int, seconds: float) -> None:
        """Let host names lead to another cluster, where other producers have the same ids."""
        world = self._world
        for broker in world.cluster.brokers:
            if broker == kept:
                self._later(seconds, lambda: self._cut_from(self._to(kept), arriving, noticed))
            else:
                self._cut_from(self._to(broker), arriving, noticed)
        self._begin_cluster()

    def _begin_cluster(self) -> ClusterState:
        """Make a new cluster, in which other producers have the ids that ours may have."""
        world = self._world
        cluster = world.change_cluster()
        natives = [
            Stranger(world, cluster, cluster.topology.allocate_producer_id(broker), 0)
            for broker in cluster.brokers.values()
        ]
        places = [(topic, i) for topic, count in world.schedule.topics for i in range(count)]
        for turn in range(6):
            for native in natives:
                for place in places:
                    self._later(
                        turn * turn * world.rtt / 2,
                        lambda native=native, place=place: native.write(*place),
                    )
        return cluster

    def _do_split(self, arriving: float, noticed: bool, seconds: float, stays: bool) -> None:
        """Let each new connection lead to one of two clusters by turns, and in the end to one."""
        world, old = self._world, self._world.cluster
        for broker in old.brokers:
            self._cut_from(self._to(broker), arriving, noticed)
        new = self._begin_cluster()
        world.behind = [old, new]

        def end() -> None:
            world.behind = []
            world.cluster = old if stays else new
            others = [c for c in world.connections.values() if c.cluster is not world.cluster]
            self._cut_from(others, arriving, noticed)

        self._later(seconds, end)

    def _cut_from(self, connections: list[SimConnection], arriving: float, noticed: bool) -> None:
        for connection in connections:
            connection.lose_on_the_way(arriving)
            connection.mute = connection.deaf = True
            if noticed:
                self._world.lose(connection, KafkaConnectionError("reset by peer"))

    def _do_stranger(self, topic: str, index: int, times: int) -> None:
        """Let a stranger (another producer) write under our producer id, in the next epoch."""
        world = self._world
        identity = world.core.identity.current
        if identity is None:
            return
        stranger = Stranger(world, world.cluster, identity.producer_id, identity.epoch + 1)
        for turn in range(times):
            self._later(turn * world.rtt / 3, lambda: stranger.write(topic, index))

    def _do_jump(self, seconds: float) -> None:
        self._world.wall_jump += seconds

    def _do_flush(self) -> None:
        self._world.flush()

    def heal(self) -> None:
        """End every fault that has not ended by itself."""
        for cluster in self._world.clusters:
            for broker in cluster.brokers.values():
                broker.throttle = 0.0
                if not broker.online:
                    cluster.start_broker(broker.id, clean=True)
            for topic in cluster.topics.values():
                for partition in topic.partitions:
                    self._release(partition)

    def end_glitches(self) -> None:
        """Cancel the glitches (faults of single requests) that have not happened yet."""
        self._glitches.clear()
        self._reads.clear()

    # -- what happens to a request ------------------------------------------------------------

    def intercept(self, seen: RequestSeen) -> Action | None:
        """Choose what happens to a request; the cluster calls this before it serves one."""
        if seen.client_id == STRANGER:
            return None
        match seen.api_key:
            case 0:
                self._world.removed.look()
                self.late_copies.serving(partial(_values_in, seen), late=self._is_late(seen))
                hung_up = self._hang_up(seen)
                if hung_up is not None:
                    self._note_late(seen)
                    return hung_up
                self._served += 1
                glitch = self._glitches.get(self._served)
                self._note_late(seen)
                self._look_at_sizes(seen)
                if glitch is None:
                    return self._deny(seen) or self._refuse_next(seen) or self._boast(seen)
                self._world.trace(f"request {self._served}: {glitch.kind} {glitch.args}")
                self.happened(glitch.kind)
                action: Action | None = getattr(self, f"_on_{glitch.kind}")(glitch, seen)
                return action
            case 3:
                return self._on_metadata(seen)
            case 22:
                return self._on_init(seen)
            case 1 | 61 if not self._world.schedule.grants_read:
                return Respond(_denied_read(seen))
            case 1:
                return self._fetched(seen)
            case 32 if self._secret or not self._world.schedule.grants_describe:
                return Rewrite(_denied_describe)
            case 32:
                self._note_told(seen)
                return Rewrite(_without_retained) if self._unnamed else None
            case _:
                return None

    def _note_told(self, seen: RequestSeen) -> None:
        """Note that a broker says how long it remembers a producer, if it is asked about itself.

        It takes a request timeout at most until the producer has the answer, or asks again.
        """
        if self._untold is None or all(r.resource_type != _BROKER for r in seen.request.resources):
            return
        begin, _ = self.forgets_early[self._untold]
        told = self._world.now + self._world.schedule.options["request_timeout"]
        self.forgets_early[self._untold] = begin, told
        self._untold = None

    def _do_refuse_next(self, code: int, topic: str, partition: int) -> None:
        self._refusal = code, (topic, partition)

    def _refuse_next(self, seen: RequestSeen) -> Action | None:
        refusal = self._refusal
        if refusal is None or refusal[1] not in [(b.topic, b.partition) for b in seen.batches]:
            return None
        self._refusal = None
        return Refuse(ErrorCode(refusal[0]), frozenset({refusal[1]}))

    def _note_late(self, seen: RequestSeen) -> None:
        """Note the values of a request that is served after the client closed its connection.

        Another copy of its batches may have been sent, and acknowledged, meanwhile.
        """
        if not self._world.is_open(seen.connection_id):
            self._world.late |= _values_in(seen)

    def _look_at_sizes(self, seen: RequestSeen) -> None:
        schedule, limit = self._world.schedule, self._world.schedule.small_limit
        for batch in seen.batches if schedule.limits_stand else ():
            if batch.size > limit and batch.count > 1:
                self._world.report(
                    Anomaly.OUTGREW, f"{batch.size} bytes, {batch.count} records, limit {limit}"
                )

    def _on_drop(self, glitch: Glitch, _seen: RequestSeen) -> Action:
        carried_out, silent = glitch.args
        return Drop(carried_out, silent=True) if silent else CloseConnection(carried_out)

    def _is_late(self, seen: RequestSeen, held_since: float | None = None) -> bool:
        """Return whether no client can prevent that a broker appends a request once more.

        It cannot if it has closed the connection, or if brokers began to forget producers earlier
        than they said while they held the request back.
        """
        if held_since is not None and any(at >= held_since for at, _ in self.forgets_early):
            return True
        return not self._world.is_open(seen.connection_id)

    def _on_delay(self, glitch: Glitch, seen: RequestSeen) -> Action:
        late = partial(self._is_late, seen, self._world.now)
        held = self.late_copies.holding(partial(_values_in, seen), late)

        def served() -> None:
            self._note_late(seen)
            self.late_copies.held_served(held)

        self._later(glitch.args[0], served)
        return Delay(glitch.args[0])

    def _on_zombie(self, glitch: Glitch, seen: RequestSeen) -> Action:
        # The broker has read the request, and serves it after the client closed the connection.
        self._later(0.0, lambda: self._do_cut(seen.broker_id, 1.0, True, 0.0))
        return self._on_delay(glitch, seen)

    def _on_refuse(self, glitch: Glitch, _seen: RequestSeen) -> Action:
        code, only = glitch.args
        return Refuse(ErrorCode(code), _set(only))

    _on_spurious = _on_fence = _on_refuse

    def _on_after(self, glitch: Glitch, _seen: RequestSeen) -> Action:
        code, only = glitch.args
        try:
            return AfterAppend(ErrorCode(code), _set(only))
        except ValueError:
            return Rewrite(lambda answer: _with_code(answer, _Unnamed(code)))

    def _on_missing(self, _glitch: Glitch, _seen: RequestSeen) -> Action:
        return Rewrite(lambda answer: _with_partitions(answer, lambda parts: parts[1:]))

    def _on_doubled(self, _glitch: Glitch, _seen: RequestSeen) -> Action:
        return Rewrite(lambda answer: _with_partitions(answer, lambda parts: parts + parts[:1]))

    def _on_invented(self, _glitch: Glitch, _seen: RequestSeen) -> Action:
        def invent(parts: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*parts, *(dataclasses.replace(part, index=77) for part in parts[:1]))

        return Rewrite(lambda answer: _with_partitions(answer, invent))

    def _on_absurd(self, glitch: Glitch, seen: RequestSeen) -> Action | None:
        if seen.api_version < 14:
            return None

        return _saying(glitch.args[0])

    def _boast(self, seen: RequestSeen) -> Action | None:
        says = self._boasts.get(seen.broker_id, self._world.schedule.says)
        return None if says is None or seen.api_version < 14 else _saying(says)

    def _on_garbage(self, glitch: Glitch, seen: RequestSeen) -> Action | None:
        self._garble[seen.connection_id, seen.correlation_id] = glitch.args[0]
        return None

    def garbled(self, connection: SimConnection, payload: bytes) -> bytes:
        """Return an answer as it reaches the client: cut short if its fault is "garbage"."""
        key = connection.peer.id, int.from_bytes(payload[:4], "big")
        cut = self._garble.pop(key, None)
        return payload if cut is None else payload[:cut]

    def _on_metadata(self, seen: RequestSeen) -> Action | None:
        veiled = self._gone or self._denied or self._leaderless
        if self._old_metadata is None and not veiled:
            return None

        def change(answer: Entity) -> Entity:
            if self._old_metadata is not None:
                # All brokers of a cluster repeat the first answer that any of them gave in this
                # API version. Who asks about the cluster alone is not told of topics.
                kind = getattr(answer, "cluster_id", None), seen.api_version, bool(answer.topics)
                answer = self._old_metadata.setdefault(kind, self._aged(answer))
            topics = tuple(self._veil(topic) for topic in answer.topics)
            return dataclasses.replace(answer, topics=topics)

        return Rewrite(change)

    def _aged(self, answer: Entity) -> Entity:
        """Return a Metadata answer with the leaders that there were when the fault began."""

        def aged(topic: Any, partition: Any) -> Any:
            key = topic.topic_id, partition.partition_index
            leader, epoch = self._old_leaders.get(key, (NO_LEADER, -1))
            if leader == NO_LEADER:
                return partition
            return dataclasses.replace(
                partition, leader_id=leader, leader_epoch=epoch, error_code=ErrorCode.none
            )

        topics = tuple(
            dataclasses.replace(topic, partitions=tuple(aged(topic, p) for p in topic.partitions))
            for topic in answer.topics
        )
        return dataclasses.replace(answer, topics=topics)

    def _veil(self, topic: Any) -> Any:
        if topic.name in self._gone:
            code = ErrorCode.unknown_topic_or_partition
            return dataclasses.replace(topic, error_code=code, partitions=())
        if topic.name in self._denied:
            code = ErrorCode.topic_authorization_failed
            return dataclasses.replace(topic, error_code=code, partitions=())
        if self._leaderless:
            partitions = tuple(
                dataclasses.replace(
                    partition, leader_id=-1, error_code=ErrorCode.leader_not_available
                )
                for partition in topic.partitions
            )
            return dataclasses.replace(topic, partitions=partitions)
        return topic

    def _on_init(self, _seen: RequestSeen) -> Action | None:
        epoch, code = self._world.schedule.first_epoch, self._pid_code
        if not epoch and not code:
            return None

        def change(answer: Entity) -> Entity:
            if code:
                return dataclasses.replace(
                    answer, error_code=ErrorCode(code), producer_id=-1, producer_epoch=-1
                )
            return dataclasses.replace(answer, producer_epoch=epoch)

        return Rewrite(change)


def _values_in(seen: RequestSeen) -> set[ValueId]:
    """Return the values of a Produce request."""
    parts = [part for topic in seen.request.topic_data for part in topic.partition_data]
    records = [record for part in parts for record in read_batches(part.records)[0].records()]
    return {value for record in records if (value := parse_value(record.value)) is not None}


def _values_from(partition: Partition, broker: int, offset: int) -> list[ValueId]:
    """Return the values that a broker's copy of a partition holds from an offset on."""
    batches = partition.replicas[broker].log.batches
    raw = b"".join(batch.wire() for batch in batches if batch.base_offset >= offset)
    records = log_records(partition.topic.name, partition.index, read_batches(raw))
    values = [parse_value(record.value) for record in records]
    return [value for value in values if value is not None]


class _Unnamed:
    """An error code that no version of Kafka has."""

    def __init__(self, value: int) -> None:
        self.value = value
        self.name = f"code {value}"


def _with_code(answer: Entity, code: Any) -> Entity:
    def change(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(dataclasses.replace(part, error_code=code) for part in parts)

    return _with_partitions(answer, change)


def _set(only: Any) -> frozenset[tuple[str, int]] | None:
    return None if only is None else frozenset((topic, index) for topic, index in only)


def _with_partitions(answer: Entity, change: Any) -> Entity:
    first, *others = answer.responses
    changed = dataclasses.replace(first, partition_responses=change(first.partition_responses))
    return dataclasses.replace(answer, responses=(changed, *others))


def _denied_read(seen: RequestSeen) -> Entity:
    denied = ErrorCode.topic_authorization_failed
    if seen.api_key == 61:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": denied,
                        "error_message": None,
                        "active_producers": [],
                    }
                    for index in topic.partition_indexes
                ],
            }
            for topic in seen.request.topics
        ]
        return respond(61, seen.api_version, {"throttle_time": ZERO_MS, "topics": topics})
    responses = [
        {
            "topic": getattr(topic, "topic", None),
            "topic_id": getattr(topic, "topic_id", None),
            "partitions": [
                {
                    "partition_index": part.partition,
                    "error_code": denied,
                    "high_watermark": -1,
                    "records": None,
                    "aborted_transactions": [],
                }
                for part in topic.partitions
            ],
        }
        for topic in seen.request.topics
    ]
    values = {"throttle_time": ZERO_MS, "error_code": ErrorCode.none, "responses": responses}
    return respond(1, seen.api_version, values)


def _saying(retained: int) -> Action:
    def say(parts: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            dataclasses.replace(part, producer_state_batches_to_retain=retained) for part in parts
        )

    return Rewrite(lambda answer: _with_partitions(answer, say))


def _without_retained(answer: Entity) -> Entity:
    results = tuple(
        dataclasses.replace(
            result, configs=tuple(c for c in result.configs if c.name != TOPIC_RETAIN)
        )
        for result in answer.results
    )
    return dataclasses.replace(answer, results=results)


def _denied_describe(answer: Entity) -> Entity:
    results = tuple(
        dataclasses.replace(result, error_code=ErrorCode.cluster_authorization_failed, configs=())
        for result in answer.results
    )
    return dataclasses.replace(answer, results=results)
