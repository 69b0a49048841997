"""Inspect and change a running cluster: its topics, logs, brokers, links and faults.

Invariants
    A method is called in the event loop's thread, and takes effect before it returns. All are plain
    functions except `stop_broker` and `start_broker`, which close and open listeners.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from kio.schema.errors import ErrorCode

from aioidem._broker.batch import RefusedError
from aioidem._broker.configs import BROKER_CONFIGS, TOPIC_CONFIGS, Definition, validate
from aioidem._broker.intercept import Interceptor
from aioidem._broker.link import can_be
from aioidem._broker.partition import Partition, Replica, Topic
from aioidem._broker.server import ClusterServer
from aioidem._broker.state import ClusterState
from aioidem._broker.stored import StoredRecord, stored_records
from aioidem._network.transport import Connector
from aioidem._records import RecordBatch, read_batches
from aioidem.errors import ConfigError, error_for_code

__all__ = ["ClusterControls"]


class ClusterControls:
    """The methods of `EmbeddedCluster` that inspect or change a running cluster."""

    _state: ClusterState
    _server: ClusterServer
    _stopped_clean: dict[int, bool]

    # -- for clients ------------------------------------------------------------------------------

    @property
    def state(self) -> ClusterState:
        """Return the state of the cluster, without its sockets, for tests to inspect."""
        return self._state

    @property
    def bootstrap_servers(self) -> str:
        """Return ``host:port,...`` of the brokers that run."""
        return ",".join(f"{b.host}:{b.port}" for b in self._state.running)

    @property
    def connector(self) -> Connector:
        """Return the connector by which clients reach the brokers: in memory or over plain TCP."""
        return self._server.connector

    # -- topics -----------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication: int = 1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic.

        Its configs may include those of KIP-1269 even if no broker of the cluster implements it.

        Args:
            name: Name of the topic.
            partitions: How many partitions.
            replication: How many replicas of each.
            configs: Configs of the topic.

        Raises:
            BrokerResponseError: The error that CreateTopics would answer, for example
                `TopicAlreadyExistsError`.
        """
        try:
            self._state.topology.create_topic(
                name, partitions=partitions, replication=replication, configs=dict(configs or {})
            )
        except RefusedError as refusal:
            raise _public(refusal) from None

    def add_partitions(self, name: str, count: int) -> None:
        """Raise the number of a topic's partitions to ``count``, as CreatePartitions would.

        Raises:
            BrokerResponseError: The error that CreatePartitions would answer, for example
                `InvalidPartitionsError` if the topic has ``count`` partitions or more already.
        """
        self._server.pump()
        try:
            self._state.topology.add_partitions(self._topic(name), count)
        except RefusedError as refusal:
            raise _public(refusal) from None
        self._server.pump()

    def delete_topic(self, name: str) -> None:
        """Delete a topic.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        self._server.pump()
        self._state.delete_topic(self._topic(name))
        self._server.pump()

    def set_config(self, topic: str, name: str, value: str | int | None) -> None:
        """Set one config of a topic; None resets it to its default.

        A config of KIP-1269 is accepted even if no broker of the cluster implements the KIP.

        Raises:
            InvalidConfigurationError: There is no such config, or the value is not allowed.
            UnknownTopicOrPartitionError: There is no such topic.
        """
        target = self._topic(topic)
        overrides = _changed(TOPIC_CONFIGS, target.overrides, name, value)
        self._state.topology.set_topic_configs(target, overrides)

    def set_broker_config(
        self, name: str, value: str | int | None, broker_id: int | None = None
    ) -> None:
        """Set one broker config; None resets it to its default.

        Args:
            name: Kafka's name of the config.
            value: Its value; None: the default.
            broker_id: Id of the broker; None: the whole cluster.

        Raises:
            InvalidConfigurationError: The value is not allowed.
        """
        self._server.pump()
        broker = None if broker_id is None else self._state.brokers[broker_id]
        current = self._state.configs if broker is None else broker.configs
        configs = _changed(BROKER_CONFIGS, current, name, value)
        self._state.topology.set_broker_configs(broker, configs)

    def batches(self, topic: str, partition: int = 0) -> list[RecordBatch]:
        """Return the batches in the leader's log, committed or not; their checksums are verified.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
        """
        return read_batches(b"".join(b.wire() for b in self._log(topic, partition).log.batches))

    def records(
        self,
        topic: str,
        partition: int | None = None,
        *,
        isolation: Literal["read_committed", "read_uncommitted"] = "read_committed",
    ) -> list[StoredRecord]:
        """Return the records that a consumer would read.

        Args:
            topic: Name of the topic.
            partition: Index of the partition; None: all partitions, one after the other.
            isolation: "read_committed" leaves out records of transactions that were aborted or are
                open, and everything from the last stable offset on; "read_uncommitted" returns all
                records up to the high watermark.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
        """
        partitions = (
            self._topic(topic).partitions
            if partition is None
            else [self._partition(topic, partition)]
        )
        committed = isolation == "read_committed"
        return [
            record
            for each in partitions
            for record in stored_records(each, self._log(topic, each.index), committed=committed)
        ]

    def log_end_offset(self, topic: str, partition: int = 0) -> int:
        """Return the offset that the next record gets on the leader."""
        return self._log(topic, partition).log.end_offset

    def high_watermark(self, topic: str, partition: int = 0) -> int:
        """Return the offset up to which every in-sync replica has the records."""
        return self._partition(topic, partition).high_watermark

    def last_stable_offset(self, topic: str, partition: int = 0) -> int:
        """Return the offset up to which every transaction has ended (KIP-98)."""
        return self._partition(topic, partition).last_stable_offset

    # -- how far producers are ahead of their oldest unresolved batch -----------------------------

    def span(self, topic: str, partition: int = 0) -> int:
        """Return how many batches a producer has from its oldest unresolved one to its newest.

        Both ends are counted. A batch counts from the time when the broker has read it, and is
        unresolved until the broker has written a definite answer to it. A producer must keep this
        number, the span, within its window: the number of batches that the leader can recognise as
        duplicates (KIP-1269). If several producers write to the partition, the largest span is
        returned.
        """
        return self._partition(topic, partition).spans.span()

    def max_span(self, topic: str, partition: int = 0) -> int:
        """Return the largest `span` that any producer id and epoch ever had on this partition."""
        return self._partition(topic, partition).spans.max_span()

    def max_unproven_span(self, topic: str, partition: int = 0) -> int:
        """Return what `max_span` would be if a success answer also resolved all earlier batches.

        Such an answer proves that they are stored, because a broker appends batches in sequence.
        """
        return self._partition(topic, partition).spans.max_unproven_span()

    # -- faults -----------------------------------------------------------------------------------

    def intercept(self, hook: Interceptor | None) -> None:
        """Call ``hook`` for every request that is about to be served; None removes the hook.

        The hook returns an action, or None to let the request be served. It must not block.
        """
        self._state.interceptor = hook

    def set_rtt(self, seconds: float) -> None:
        """Set the round-trip time of every connection, for bytes sent from now on.

        Raises:
            ConfigError: It is negative or not finite.
        """
        if not can_be((seconds,), None):
            raise ConfigError(f"a round trip of {seconds} s: it must be finite and 0 or more")
        self._state.rtt = seconds
        for connection in self._state.connections:
            connection.link.set_rtt(seconds)

    def set_bandwidth(self, bytes_per_second: float | None) -> None:
        """Set the bandwidth of every connection in each direction, for bytes sent from now on.

        Raises:
            ConfigError: It is not positive.
        """
        if not can_be((), bytes_per_second):
            raise ConfigError(f"a bandwidth of {bytes_per_second}: it must be above 0, or None")
        self._state.bandwidth = bytes_per_second
        for connection in self._state.connections:
            connection.link.set_bandwidth(bytes_per_second)

    def set_throttle(self, broker_id: int, seconds: float) -> None:
        """Throttle Produce requests to a broker, as a quota would (KIP-219).

        Each answer carries this throttle time, and the broker does not serve the connection until
        the time has passed.

        Args:
            broker_id: Id of the broker.
            seconds: Throttle time; 0 ends the throttling.
        """
        self._state.brokers[broker_id].throttle = seconds

    def set_produce_version(self, broker_id: int, version: int) -> None:
        """Change a broker's highest Produce version, as a rolling upgrade or downgrade would.

        Connections stay open. If a client sends a version that is no longer served, the broker
        closes its connection.
        """
        self._state.brokers[broker_id].produce_version = version

    def set_clock_offset(self, broker_id: int, seconds: float) -> None:
        """Set a broker's wall clock ahead of the true time by ``seconds``; negative: behind it."""
        self._server.pump()
        self._state.brokers[broker_id].clock_offset_ms = round(seconds * 1000)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the leader's id; -1 if there is no leader."""
        return self._partition(topic, partition).leader

    def leader_epoch(self, topic: str, partition: int = 0) -> int:
        """Return the leader epoch, which counts the changes of the leader."""
        return self._partition(topic, partition).leader_epoch

    def move_leader(self, topic: str, partition: int, broker_id: int) -> None:
        """Make a broker the leader; if it has no replica, the old leader's replica moves to it.

        Requests that wait for replication at the old leader are answered NOT_LEADER_OR_FOLLOWER
        with their base offset.

        Raises:
            BrokerResponseError: The broker does not run.
        """
        target = self._partition(topic, partition)
        try:
            self._change(lambda: self._state.move_leader(target, broker_id))
        except RefusedError as refusal:
            raise _public(refusal) from None

    def hold_high_watermark(self, topic: str, partition: int = 0, at: int | None = None) -> None:
        """Stop the high watermark, here or at offset ``at``, so that acks=all requests time out."""
        self._on_partition(topic, partition, lambda p: p.hold_high_watermark(at))

    def release_high_watermark(self, topic: str, partition: int = 0) -> None:
        """End `hold_high_watermark`; requests that wait for the high watermark are answered."""
        self._on_partition(topic, partition, Partition.release_high_watermark)

    def pause_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """Stop a follower from copying, so that it lacks the end of the log if it is elected."""
        self._on_partition(topic, partition, lambda p: p.pause(broker_id))

    def resume_follower(self, topic: str, partition: int, broker_id: int) -> None:
        """End `pause_follower`; the follower catches up."""
        self._on_partition(topic, partition, lambda p: p.resume(broker_id))

    def shrink_isr(self, topic: str, partition: int, broker_id: int) -> None:
        """Remove a follower from the in-sync replicas, until it next catches up with the leader.

        Followers catch up at an election, at `resume_follower`, and when a broker starts.
        """
        self._on_partition(topic, partition, lambda p: p.shrink_isr(broker_id))

    def coordinator(self, key: str) -> int:
        """Return the id of the coordinator of a transactional id or group; -1 if none runs."""
        broker = self._state.coordinator_of(key)
        return -1 if broker is None else broker.id

    def move_coordinator(self, key: str, broker_id: int) -> None:
        """Make a broker the coordinator of a transactional id or group."""
        self._change(lambda: self._state.move_coordinator(key, broker_id))

    def fail_coordinator(self, key: str, code: ErrorCode | int | None) -> None:
        """Make the coordinator of a transactional id or group answer every request with an error.

        A partition's leader that has to ask this coordinator about a transaction answers Produce
        with NOT_ENOUGH_REPLICAS.

        Args:
            key: Transactional id, or name of the group.
            code: `ErrorCode.coordinator_load_in_progress`, `ErrorCode.coordinator_not_available`
                (also the answer to FindCoordinator) or `ErrorCode.not_coordinator`; None ends the
                errors.
        """
        self._server.pump()
        if code is None:
            self._state.coordinator_faults.pop(key, None)
        else:
            self._state.coordinator_faults[key] = ErrorCode(code)

    def hold_markers(self) -> None:
        """Stop writing transaction markers, so that a commit or abort is decided but not completed.

        Until `release_markers`, requests for the transactional id of such a transaction are
        answered CONCURRENT_TRANSACTIONS.
        """
        self._change(self._state.transactions.hold_markers)

    def release_markers(self) -> None:
        """End `hold_markers`: write the missing markers, which completes commits and aborts."""
        self._change(self._state.transactions.release_markers)

    def set_marker_delay(self, seconds: float) -> None:
        """Set how many seconds after a commit or abort a transaction's markers are written."""
        self._server.pump()
        self._state.transactions.marker_delay = seconds

    def set_group(self, group: str, generation: int, members: Mapping[str, str | None]) -> None:
        """Set the generation and members of a group, so that only these may commit offsets for it.

        Args:
            group: Name of the group.
            generation: Generation of the group.
            members: The group instance id of each member id; None for a dynamic member.
        """
        self._server.pump()
        self._state.groups.set_members(group, generation, members)

    async def stop_broker(self, broker_id: int, *, clean: bool = True) -> None:
        """Stop a broker: its connections end, and in-sync replicas on other brokers become leaders.

        When the broker starts again, it remembers only the last batch of each producer, because it
        loads a snapshot of the producer state, and a snapshot holds no more. After a crash the
        broker makes that snapshot during its recovery.

        Args:
            broker_id: Id of the broker.
            clean: Whether the broker ends as by SIGTERM; False: as by SIGKILL.
        """
        if not self._state.brokers[broker_id].online:
            return
        await self._server.stop_listening(broker_id)
        self._stopped_clean[broker_id] = clean
        self._change(lambda: self._state.stop_broker(broker_id, clean=clean))

    async def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker again, at the same address."""
        broker = self._state.brokers[broker_id]
        if broker.online:
            return
        clean = self._stopped_clean.pop(broker_id, True)
        self._change(lambda: self._state.start_broker(broker_id, clean=clean))
        await self._server.listen(broker)

    # -- helpers ----------------------------------------------------------------------------------

    def _topic(self, name: str) -> Topic:
        topic = self._state.topics.get(name)
        if topic is None:
            raise _unknown(f"there is no topic {name!r}")
        return topic

    def _partition(self, topic: str, index: int) -> Partition:
        partition = self._topic(topic).partition(index)
        if partition is None:
            raise error_for_code(ErrorCode.unknown_topic_or_partition)(
                f"topic {topic!r} has no partition {index}"
            )
        return partition

    def _log(self, topic: str, index: int) -> Replica:
        partition = self._partition(topic, index)
        leader = partition.leader_replica
        return leader if leader is not None else partition.replicas[partition.isr[0]]

    def _on_partition(self, topic: str, index: int, change: Callable[[Partition], None]) -> None:
        partition = self._partition(topic, index)

        def act() -> None:
            change(partition)
            self._state.wake(partition)

        self._change(act)

    def _change(self, act: Callable[[], None]) -> None:
        """Carry out the events that are due, call ``act``, and carry out those that it causes."""
        self._server.pump()
        act()
        self._server.pump()


def _unknown(message: str) -> Exception:
    return error_for_code(ErrorCode.unknown_topic_or_partition)(message)


def _public(refusal: RefusedError) -> Exception:
    return error_for_code(refusal.code)(refusal.message)


def _changed(
    definitions: Mapping[str, Definition],
    current: Mapping[str, str],
    name: str,
    value: str | int | None,
) -> dict[str, str]:
    """Return configs with one of them set to a value, or without it if the value is None."""
    configs = dict(current)
    if value is None:
        configs.pop(name, None)
        return configs
    configs[name] = str(value)
    try:
        validate(definitions, [(name, configs[name])], retains=True)
    except RefusedError as refusal:
        raise _public(refusal) from None
    return configs
